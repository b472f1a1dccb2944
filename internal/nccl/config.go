package nccl

import (
	"encoding/binary"

	"symmem/internal/dl"
)

// Config chooses properties of a communicator: ncclConfig_t. The zero value leaves everything to
// NCCL. Ranks may differ in names only.
type Config struct {
	// NonBlocking makes calls return before they are done: AsyncError then tells.
	NonBlocking bool
	// CGAClusterSize is the number of blocks in a cluster; MinCTAs and MaxCTAs bound the number
	// of blocks of a kernel, NVLSCTAs that of multicast kernels. 0 leaves them to NCCL.
	CGAClusterSize, MinCTAs, MaxCTAs, NVLSCTAs int32
	// CTAPolicy is one of the CTAPolicy constants.
	CTAPolicy CTAPolicy
	// SplitShare and ShrinkShare let communicators that are made from this one use its resources.
	SplitShare, ShrinkShare bool
	// CollNet lets reductions run in the network's switches.
	CollNet bool
	// Network names the network plugin to use, and Name the communicator in NCCL's logs.
	Network, Name string
}

// CTAPolicy says how eagerly NCCL uses the GPU's processors: NCCL_CTA_POLICY_... of nccl.h.
type CTAPolicy int32

// The policies.
const (
	CTAPolicyDefault    CTAPolicy = 0
	CTAPolicyEfficiency CTAPolicy = 1 // from 2.27 on
	CTAPolicyZero       CTAPolicy = 2 // copy engines where possible; from 2.28 on
)

// configMagic is what the structure is known by: NCCL_CONFIG_INITIALIZER of nccl.h.
const configMagic = 0xcafebeef

// field is a member of ncclConfig_t, by its place in a layout.
type field uint8

const (
	fieldSize field = iota
	fieldMagic
	fieldVersion
	fieldBlocking
	fieldCGAClusterSize
	fieldMinCTAs
	fieldMaxCTAs
	fieldNetName
	fieldSplitShare
	fieldTrafficClass
	fieldCommName
	fieldCollnetEnable
	fieldCTAPolicy
	fieldShrinkShare
	fieldNVLSCTAs
	fields
)

// layout is the structure as one version of nccl.h declares it. Size and version are written into
// the structure and must belong together: an older library reads as much as it knows, a newer one
// takes its defaults for what the version lacks.
type layout struct {
	size    int
	version uint32
	fields  [fields]member
}

// member is a field's place in bytes, its width, and its name in nccl.h.
type member struct {
	offset, width int
	name          string
}

// layout227 is the structure of 2.27, the oldest version with windows, on 64-bit systems.
var layout227 = layout{72, 22700, [fields]member{
	fieldSize:           {0, 8, "size"},
	fieldMagic:          {8, 4, "magic"},
	fieldVersion:        {12, 4, "version"},
	fieldBlocking:       {16, 4, "blocking"},
	fieldCGAClusterSize: {20, 4, "cgaClusterSize"},
	fieldMinCTAs:        {24, 4, "minCTAs"},
	fieldMaxCTAs:        {28, 4, "maxCTAs"},
	fieldNetName:        {32, 8, "netName"},
	fieldSplitShare:     {40, 4, "splitShare"},
	fieldTrafficClass:   {44, 4, "trafficClass"},
	fieldCommName:       {48, 8, "commName"},
	fieldCollnetEnable:  {56, 4, "collnetEnable"},
	fieldCTAPolicy:      {60, 4, "CTAPolicy"},
	fieldShrinkShare:    {64, 4, "shrinkShare"},
	fieldNVLSCTAs:       {68, 4, "nvlsCTAs"},
}}

// image is a configuration as C sees it, with the strings that it points to.
type image struct {
	bytes         [72]byte
	network, name *byte
}

// encode writes the structure. The image stays reachable for as long as C reads it.
func (c Config) encode(l *layout) *image {
	m := new(image)
	values := [fields]uint64{
		fieldSize:           uint64(l.size),
		fieldMagic:          configMagic,
		fieldVersion:        uint64(l.version),
		fieldBlocking:       chosen(c.NonBlocking, 0),
		fieldCGAClusterSize: positive(c.CGAClusterSize),
		fieldMinCTAs:        positive(c.MinCTAs),
		fieldMaxCTAs:        positive(c.MaxCTAs),
		fieldNetName:        text(&m.network, c.Network),
		fieldSplitShare:     chosen(c.SplitShare, 1),
		fieldTrafficClass:   undefined,
		fieldCommName:       text(&m.name, c.Name),
		fieldCollnetEnable:  chosen(c.CollNet, 1),
		fieldCTAPolicy:      positive(int32(c.CTAPolicy)),
		fieldShrinkShare:    chosen(c.ShrinkShare, 1),
		fieldNVLSCTAs:       positive(c.NVLSCTAs),
	}
	for f, value := range values {
		at := m.bytes[l.fields[f].offset:]
		if l.fields[f].width == 4 {
			binary.NativeEndian.PutUint32(at, uint32(value))
		} else {
			binary.NativeEndian.PutUint64(at, value)
		}
	}
	return m
}

// undefined is an integer that is left to NCCL: NCCL_CONFIG_UNDEF_INT, which is INT_MIN.
const undefined = 1 << 31

// chosen is a value if it was asked for.
func chosen(asked bool, value uint64) uint64 {
	if !asked {
		return undefined
	}
	return value
}

func positive(value int32) uint64 {
	return chosen(value > 0, uint64(value))
}

// text keeps a string for C at kept and returns its address, or NULL for "".
func text(kept **byte, s string) uint64 {
	if s == "" {
		return 0
	}
	*kept = dl.CString(s)
	return uint64(dl.AddressOf(*kept))
}
