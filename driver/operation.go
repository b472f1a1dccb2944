package driver

import "slices"

// Operation is a collective operation.
type Operation uint8

// The collective operations. Counts are in elements and mean what NCCL's mean: for AllGather
// and ReduceScatter the count of one rank's part, for AllToAll the count for one peer.
const (
	AllReduce Operation = iota
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	AllToAll
	Send
	Recv
	Barrier
	// AllReduceRMSNorm is AllReduce, residual and norm in one call: see Norm. Only GPUs have it.
	AllReduceRMSNorm
	// AllToAllV is AllToAll with a count for each pair of ranks: see Splits.
	AllToAllV
	operations
)

// traits describe an operation to the code that plans calls.
type traits struct {
	name string
	// reduces reports whether Call.ReduceOp matters, rooted whether Call.Root does as the root, pair
	// whether it does as the peer.
	reduces, rooted, pair bool
	// windows reports whether its buffers are looked up in windows, and registered before.
	windows bool
	// paths are those that it can take at all.
	paths []Path
}

// operationTraits has a row for each operation.
var operationTraits = [operations]traits{
	AllReduce:     {name: "AllReduce", reduces: true, windows: true, paths: anyPath},
	AllGather:     {name: "AllGather", windows: true, paths: anyPath},
	ReduceScatter: {name: "ReduceScatter", reduces: true, windows: true, paths: anyPath},
	Broadcast:     {name: "Broadcast", rooted: true, windows: true, paths: anyPath},
	Reduce:        {name: "Reduce", reduces: true, rooted: true, windows: true, paths: anyPath},
	AllToAll:      {name: "AllToAll", windows: true, paths: anyPath},
	Send:          {name: "Send", pair: true, paths: []Path{PathPlain}},
	Recv:          {name: "Recv", pair: true, paths: []Path{PathPlain}},
	Barrier:       {name: "Barrier", paths: []Path{PathPlain, PathDirect}},
	AllReduceRMSNorm: {
		name: "AllReduceRMSNorm", reduces: true, windows: true, paths: []Path{PathDirect},
	},
	AllToAllV: {name: "AllToAllV", paths: []Path{PathPlain}},
}

var anyPath = []Path{PathPlain, PathWindow, PathDirect}

// noTraits are those of operations that do not exist.
var noTraits = traits{name: "Operation(?)"}

func (o Operation) traits() *traits {
	if o < operations {
		return &operationTraits[o]
	}
	return &noTraits
}

// String returns the operation's name.
func (o Operation) String() string { return o.traits().name }

// PointToPoint reports whether the operation involves two ranks only.
func (o Operation) PointToPoint() bool { return o.traits().pair }

// Reduces reports whether the operation combines elements, by Call.ReduceOp.
func (o Operation) Reduces() bool { return o.traits().reduces }

// Rooted reports whether one rank of the operation is its root.
func (o Operation) Rooted() bool { return o.traits().rooted }

// UsesWindows reports whether the buffers of the operation are looked up in windows, so that their
// memory is registered before.
func (o Operation) UsesWindows() bool { return o.traits().windows }

// Takes reports whether the operation has a path at all. Which of them a call takes is between
// Offer.Refusal and whoever chooses.
func (o Operation) Takes(path Path) bool { return slices.Contains(o.traits().paths, path) }

// Path is the way a collective runs.
type Path uint8

// The paths.
const (
	// PathPlain works on any memory, by copies through shared staging.
	PathPlain Path = iota
	// PathWindow works on registered memory, which peers read and write directly.
	PathWindow
	// PathDirect runs kernels of our own over peers' memory; only GPUs have it.
	PathDirect
	// Paths is their number.
	Paths
)

// String returns the path's name.
func (p Path) String() string {
	return [...]string{"plain", "window", "direct", "?"}[min(p, Paths)]
}
