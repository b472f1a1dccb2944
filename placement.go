package symmem

// Placement is the order in which equally large free blocks are taken.
type Placement uint8

// The placements.
const (
	// PlaceByCreation takes the block with the lowest (segment ordinal, offset): the same on every
	// rank that makes the same requests.
	PlaceByCreation Placement = iota
	// PlaceByAddress takes the block with the lowest address, as PyTorch did up to 2.11. Addresses
	// differ between ranks, so placements may too: it is there to show that, and to replay traces.
	PlaceByAddress
)

var placementNames = []string{"creation", "address"}

// String returns "creation" or "address".
func (p Placement) String() string { return nameOf(p, placementNames, "Placement") }

// ParsePlacement reads a name as String writes it.
func ParsePlacement(name string) (Placement, error) {
	return parseName[Placement](name, placementNames, "placement")
}

// Sizing is how large segments are, and how blocks are cut from them.
type Sizing uint8

// The sizings.
const (
	// SizeDoubling makes each segment as large as all before it together.
	SizeDoubling Sizing = iota
	// SizeAsPyTorch sizes segments and splits blocks as PyTorch's caching allocator does, for
	// replays of its requests.
	SizeAsPyTorch
)
