package alloc

// Stream is the caller's identifier of a stream. A block can be used only by the stream for which
// it was allocated and by those passed to Use. Ranks may use different identifiers for the same
// stream; Core.Number maps an identifier to a number that is the same on all ranks.
type Stream int32

// Handle identifies a block of a Core from the Alloc that returned it until the block is freed. The
// zero Handle is never issued. A Handle is reused only after its block record has been reused 1<<32
// times.
type Handle uint64

func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block describes an allocated range of a segment; View has more details. A Block has only four
// words, because the compiler keeps larger structs in memory instead of registers.
type Block struct {
	Segment int32 // ordinal of the segment
	Offset  int64 // bytes from the start of the segment
	Size    int64 // bytes that the block covers
	Handle  Handle
}

// State tracks a block through its lifetime:
//
//	free ──Alloc──> live ──Free──────────────────────────────> free
//	                 │ ├──Free while pinned──> parked ──Unpin──> free or deferred
//	                 │ └──Free with uses────> deferred ──Synced or pressure──> free
//	                 └──Pin, Unpin, Use keep it live
type State uint8

// The states of a block.
const (
	vacant   State = iota // a record that describes no block
	Free                  // can be allocated by its stream, and merges with free neighbors
	Live                  // owned by a caller
	Parked                // freed while pinned; becomes free or deferred at the last Unpin
	Deferred              // freed while other streams may still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"vacant", "free", "live", "parked", "deferred"}[s]
}

// Block numbers have only 26 bits, because they share a word with a position or size. Number 0
// means no block. Region numbers have the same format.
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits
)

// Positions are below maxPosition, because they share a word with a region number.
const maxPosition = uint64(1) << (64 - idBits)

// block is the record of one block in a Core's slab. A record fills half a cache line. Its size
// matters because reading a record is nearly always a cache miss: blocks that are adjacent in
// memory are far apart in the slab. A record has no pointers, so the garbage collector never scans
// it.
type block struct {
	place      uint64 // position in the arena in units, see segment.base; low bits: the region
	span       uint64 // size in units; low bits: the previous block in the region, see region.ring
	next       uint32 // next block in the region, or next vacant record
	generation uint32 // incremented on every free
	// packed holds the state in its lowest bits and, above them, the hasSide bit. The other bits of
	// a free block hold the index of its key in its bag (see bag.go). Those of any other block hold
	// the requested number of bytes.
	packed uint64
}

const (
	stateMask      = 7
	hasSide        = 8 // set if the side record is in use
	requestedShift = 4
	slotShift      = 4
)

// side holds the fields that only a few blocks need. It has the same number as its block.
type side struct {
	pins          int32  // number of Pins without an Unpin
	uses          uint32 // head of the list of uses on other streams
	before, after uint32 // neighbors in the queue of deferred blocks
	kept          bool   // whether the block stays allocated until the next Rebuild
}

func (b *block) position() uint64  { return b.place >> idBits }
func (b *block) region() uint32    { return uint32(b.place & idMask) }
func (b *block) units() uint64     { return b.span >> idBits }
func (b *block) size() int64       { return int64(b.span>>idBits) << unitShift }
func (b *block) prev() uint32      { return uint32(b.span & idMask) }
func (b *block) setPrev(id uint32) { b.span = b.span&^idMask | uint64(id) }
func (b *block) state() State      { return State(b.packed & stateMask) }
func (b *block) setState(s State)  { b.packed = b.packed&^stateMask | uint64(s) }

// requested returns the number of bytes requested for a block that is not free.
func (b *block) requested() int64 { return int64(b.packed >> requestedShift) }

func (b *block) slot() uint32 { return uint32(b.packed >> slotShift) }

// key returns a key that identifies a block and orders blocks by position.
func (b *block) key(id uint32) uint64 { return b.place&^idMask | uint64(id) }

func (b *block) moveTo(place, units uint64) {
	b.place, b.span = place, units<<idBits|b.span&idMask
}

type slab struct {
	blocks []block // by number; index 0 is reserved and means no block
	sides  []side  // by number of the block
	vacant uint32  // first vacant record
}

// grab returns the number of a vacant record. It may reallocate the slab.
func (s *slab) grab() uint32 {
	if id := s.vacant; id != 0 {
		s.vacant = s.blocks[id].next
		return id
	}
	s.blocks = append(s.blocks, block{})
	s.sides = append(s.sides, side{})
	return uint32(len(s.blocks) - 1)
}

// drop makes a record vacant. The record keeps its generation, so that stale handles are still
// detected.
func (s *slab) drop(b *block, id uint32) {
	b.packed = uint64(vacant)
	b.next = s.vacant
	s.vacant = id
}

// resolve returns the number of a handle's block, or an error if the block has become free.
func (s *slab) resolve(h Handle) (uint32, error) {
	id := uint32(h)
	if id == 0 || int(id) >= len(s.blocks) {
		return 0, ErrForeign
	}
	switch age := int32(uint32(h>>32) - s.blocks[id].generation); {
	case age < 0:
		return 0, ErrFreed
	case age > 0 || s.blocks[id].state() < Live:
		return 0, ErrForeign
	}
	return id, nil
}

// live returns the number of a handle's block, or an error if the block is not live.
func (s *slab) live(h Handle) (uint32, error) {
	id, err := s.resolve(h)
	if err == nil && s.blocks[id].state() != Live {
		return 0, ErrFreed
	}
	return id, err
}
