package symmem

// Placement selects one of several free blocks of the same size.
type Placement uint8

// The placements.
const (
	// PlaceByCreation selects the block with the lowest (segment ordinal, offset), the same on every
	// rank with the same requests.
	PlaceByCreation Placement = iota
	// PlaceByAddress selects the block with the lowest address, as PyTorch did up to 2.11. Addresses
	// and thus placements may differ between ranks: use it only to show that, or to replay traces.
	PlaceByAddress
)

var placementNames = []string{"creation", "address"}

// String returns "creation" or "address".
func (p Placement) String() string { return nameOf(p, placementNames, "Placement") }

// ParsePlacement parses a name that String returns.
func ParsePlacement(name string) (Placement, error) {
	return parseName[Placement](name, placementNames, "placement")
}

// Sizing determines the sizes of segments and how they are split into blocks.
type Sizing uint8

// The sizings.
const (
	// SizeDoubling makes each segment as large as all earlier segments together.
	SizeDoubling Sizing = iota
	// SizeAsPyTorch sizes segments and splits blocks as PyTorch's caching allocator does, to replay
	// its requests.
	SizeAsPyTorch
)
