package alloc

// Stream is the caller's identifier of a stream. Ranks may use different identifiers;
// Core.Number maps them to the same number.
type Stream int32

// Handle identifies a block until the block is freed. The zero Handle is never issued. A Handle is
// reused only after 1<<32 blocks have used its record.
type Handle uint64

func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block describes an allocated range of a segment. It has only four words, so that it is passed in
// registers.
type Block struct {
	Segment int32
	Offset  int64 // in bytes
	Size    int64
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
	vacant   State = iota // the record describes no block
	Free                  // can be allocated by its stream
	Live                  // owned by a caller
	Parked                // freed while pinned; becomes free or deferred at the last Unpin
	Deferred              // freed while other streams may still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"vacant", "free", "live", "parked", "deferred"}[s]
}

// Block and region numbers have 26 bits, because they share a word with a position or size. Number
// 0 means none.
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits
)

const maxPosition = uint64(1) << (64 - idBits)

// block is the record of a block. It fills half a cache line, because reading a record is nearly
// always a cache miss.
type block struct {
	positionAndRegion uint64 // position in the arena in units; low bits: the region
	unitsAndPrev      uint64 // size in units; low bits: the previous block in the region
	next              uint32 // next block in the region, or next vacant record
	generation        uint32
	// packed holds the state in its lowest bits and, above them, the hasExtra bit. The other bits
	// of a free block hold the slot of its key in its bag (see bag.go). The other bits of
	// any other block hold the requested number of bytes.
	packed uint64
}

const (
	stateMask      = 7
	hasExtra       = 8
	requestedShift = 4
	slotShift      = 4
)

// extra holds the fields that only a few blocks need, under the same number as the block.
type extra struct {
	pins                       int32
	firstUse                   uint32
	prevDeferred, nextDeferred uint32
	kept                       bool // whether the block stays allocated until the next Rebuild
}

func (b *block) position() uint64  { return b.positionAndRegion >> idBits }
func (b *block) region() uint32    { return uint32(b.positionAndRegion & idMask) }
func (b *block) units() uint64     { return b.unitsAndPrev >> idBits }
func (b *block) size() int64       { return int64(b.unitsAndPrev>>idBits) << unitShift }
func (b *block) prev() uint32      { return uint32(b.unitsAndPrev & idMask) }
func (b *block) setPrev(id uint32) { b.unitsAndPrev = b.unitsAndPrev&^idMask | uint64(id) }
func (b *block) state() State      { return State(b.packed & stateMask) }
func (b *block) setState(s State)  { b.packed = b.packed&^stateMask | uint64(s) }

func (b *block) requested() int64 { return int64(b.packed >> requestedShift) }

func (b *block) slot() uint32 { return uint32(b.packed >> slotShift) }

// key identifies a block and orders blocks by position.
func (b *block) key(id uint32) uint64 { return b.positionAndRegion&^idMask | uint64(id) }

func (b *block) moveTo(place, units uint64) {
	b.positionAndRegion, b.unitsAndPrev = place, units<<idBits|b.unitsAndPrev&idMask
}

type slab struct {
	blocks []block // index 0 means no block
	extras []extra
	vacant uint32
}

// newBlock may reallocate the slab.
func (s *slab) newBlock() uint32 {
	if id := s.vacant; id != 0 {
		s.vacant = s.blocks[id].next
		return id
	}
	s.blocks = append(s.blocks, block{})
	s.extras = append(s.extras, extra{})
	return uint32(len(s.blocks) - 1)
}

// dropBlock makes a record vacant. It keeps the generation, so that stale handles are detected.
func (s *slab) dropBlock(b *block, id uint32) {
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

func (s *slab) live(h Handle) (uint32, error) {
	id, err := s.resolve(h)
	if err == nil && s.blocks[id].state() != Live {
		return 0, ErrFreed
	}
	return id, err
}
