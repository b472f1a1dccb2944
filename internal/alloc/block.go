package alloc

// Stream names a stream of the caller. A block serves only the stream it was allocated on.
// Streams are told apart by their names; Core.Number gives one that ranks have alike.
type Stream int32

// Handle identifies one lifetime of a block within its Core. The zero Handle is never issued.
// A handle is distinct from all others until its slot was reused 1<<32 times.
type Handle uint64

func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block is a range of one segment that was given to a caller. It is a value: copies are equal.
// It has four words, the most that the compiler keeps in registers; View knows more.
type Block struct {
	Segment int32 // ordinal of the segment
	Offset  int64 // bytes from the start of the segment
	Size    int64 // bytes that the block covers
	Handle  Handle
}

// State is where a block stands.
//
//	free ──Alloc──> live ──Free──────────────────────────────> free
//	                 │ ├──Free while pinned──> parked ──Unpin──> free or deferred
//	                 │ └──Free with uses────> deferred ──Synced or pressure──> free
//	                 └──Pin, Unpin, Use keep it live
type State uint8

// The states of a block.
const (
	vacant   State = iota // a record that describes no block
	Free                  // may be taken by its stream, merges with free neighbours
	Live                  // in the hands of a caller
	Parked                // freed while pinned, returns at the last Unpin
	Deferred              // freed while other streams may still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"vacant", "free", "live", "parked", "deferred"}[s]
}

// Records are numbered by 26 bits, so that numbers share words with
// positions and sizes. Record 0 is no block; regions are numbered alike.
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits
)

// atLimit is the first position that a record cannot hold.
const atLimit = uint64(1) << (64 - idBits)

// block is the record of one block in the slab of a Core: half a cache line, because neighbours in
// memory are strangers in the slab and nearly every record that is looked at is a miss; and without
// pointers, so the garbage collector never scans it. All fields are guarded by whoever guards the
// Core.
type block struct {
	place      uint64 // position in the arena in units, see segment.base; below, the region
	span       uint64 // size in units; below, the block before it in the region, see region.ring
	next       uint32 // block after it in the region, or next vacant record
	generation uint32 // raised when the block returns
	// rest has the state in its lowest bits, then one that says whether the side record matters.
	// Above are, if the block is free, its slot in the bag of its size, and otherwise the bytes
	// that the caller asked for.
	rest uint64
}

// Parts of block.rest.
const (
	stateMask  = 7
	sided      = 8
	askedShift = 4
	slotShift  = 4
)

// side is what few blocks need, kept apart from the records. Its number is that of the block.
type side struct {
	pins          int32  // graphs that hold it
	uses          uint32 // first of its uses on other streams
	before, after uint32 // neighbours in the queue of deferred blocks
	kept          bool   // does not become free before the next Rebuild
}

func (b *block) position() uint64  { return b.place >> idBits }
func (b *block) region() uint32    { return uint32(b.place & idMask) }
func (b *block) units() uint64     { return b.span >> idBits }
func (b *block) size() int64       { return int64(b.span>>idBits) << unitShift }
func (b *block) prev() uint32      { return uint32(b.span & idMask) }
func (b *block) setPrev(id uint32) { b.span = b.span&^idMask | uint64(id) }
func (b *block) state() State      { return State(b.rest & stateMask) }
func (b *block) setState(s State)  { b.rest = b.rest&^stateMask | uint64(s) }

// requested is what the caller asked for a block that is not free.
func (b *block) requested() int64 { return int64(b.rest >> askedShift) }

// slot is where a free block stands in its bag.
func (b *block) slot() uint32 { return uint32(b.rest >> slotShift) }

// key orders blocks by position and names them.
func (b *block) key(id uint32) uint64 { return b.place&^idMask | uint64(id) }

// moveTo gives a block the start and region of a place, and a size.
func (b *block) moveTo(place, units uint64) {
	b.place, b.span = place, units<<idBits|b.span&idMask
}

// slab has the records of blocks.
type slab struct {
	blocks []block // by number; 0 is no block
	sides  []side  // by number of the block
	vacant uint32  // first vacant record
}

// grab returns the number of a vacant record. It may move the slab.
func (s *slab) grab() uint32 {
	if id := s.vacant; id != 0 {
		s.vacant = s.blocks[id].next
		return id
	}
	s.blocks = append(s.blocks, block{})
	s.sides = append(s.sides, side{})
	return uint32(len(s.blocks) - 1)
}

// drop makes a record vacant. Its generation stays, so stale handles are still told apart.
func (s *slab) drop(b *block, id uint32) {
	b.rest = uint64(vacant)
	b.next = s.vacant
	s.vacant = id
}

// resolve returns the record of a block that was not returned yet.
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

// live is resolve for blocks that are still in the hands of a caller.
func (s *slab) live(h Handle) (uint32, error) {
	id, err := s.resolve(h)
	if err == nil && s.blocks[id].state() != Live {
		return 0, ErrFreed
	}
	return id, err
}
