package alloc

// Stream is the caller's name for a stream. Ranks may use different names for the same stream. The
// stream's Core.Number is the same on all ranks.
type Stream int32

// Handle identifies a block until the block is freed. It is never 0. A value can occur again only
// after 1<<32 other blocks.
type Handle uint64

// makeHandle packs the id of a block's record into the low 32 bits. The high 32 bits hold the
// generation, which distinguishes the blocks that use the same record one after the other.
func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block describes an allocated range of a segment. It fits into registers.
type Block struct {
	Segment int32 // ordinal of the segment
	Offset  int64 // in the segment, in bytes
	Size    int64 // in bytes
	Handle  Handle
}

// State is the state of a block. A block has uses if Core.Use has been called for streams that do
// not own it. It is pinned between Core.Pin and Core.Unpin.
//
//	free ──Alloc──> live ──Free──────────────────────────────> free
//	                 │ ├──Free while pinned──> parked ──Unpin──> free or deferred
//	                 │ └──Free with uses────> deferred ──StreamCompleted or Alloc──> free
//	                 └──Pin, Unpin, Use keep it live
type State uint8

// The states of a block.
const (
	unusedRecord State = iota // not a block: a sentinel or an unused entry of blockTable
	Free                      // ready for an Alloc of its stream
	Live                      // allocated
	Parked                    // freed while pinned
	Deferred                  // freed while other streams can still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"unused record", "free", "live", "parked", "deferred"}[s]
}

// Ids of blocks and regions have 26 bits. The other 38 bits of a 64-bit word hold a position or a
// size. An id of 0 means "none".
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits
)

// maxPosition limits the position of a block in the arena, which consists of all segments.
// Positions and sizes are in units of Unit bytes.
const maxPosition = uint64(1) << (64 - idBits)

// block is the record of a block, or an unused record. Records have half the size of a cache line,
// so that reading one causes at most one cache miss.
type block struct {
	positionAndRegion uint64 // position in the arena, in units; the low idBits hold the region's id
	unitsAndPrev      uint64 // size in units; the low idBits hold the id of the previous block
	next              uint32 // id of the next block in the region, or of the next unused record
	generation        uint32 // number of blocks that used this record before
	// packed holds the state in its three lowest bits, and then hasRareFieldsBit. For a free block,
	// the other bits hold the slot of its key (see bag). For a block in another state, they hold
	// the number of requested bytes.
	packed uint64
}

// The parts of block.packed.
const (
	stateMask        = 7 // bits 0 to 2
	hasRareFieldsBit = 8 // bit 3: whether the block's rareFields may be used
	requestedShift   = 4
	slotShift        = 4
)

// rareFields holds those fields of a block that most blocks do not need. They are used only if the
// block is pinned, kept or deferred, or has uses.
type rareFields struct {
	pins                       int32  // number of calls of Core.Pin that no Unpin has undone
	firstUse                   uint32 // id of the first use in useTable.uses, or 0
	prevDeferred, nextDeferred uint32 // ids of the owner's other deferred blocks, or 0
	isKept                     bool   // whether the block stays allocated until the next Rebuild
}

func (b *block) position() uint64  { return b.positionAndRegion >> idBits }
func (b *block) region() uint32    { return uint32(b.positionAndRegion & idMask) }
func (b *block) units() uint64     { return b.unitsAndPrev >> idBits }
func (b *block) size() int64       { return int64(b.unitsAndPrev>>idBits) << unitShift }
func (b *block) prev() uint32      { return uint32(b.unitsAndPrev & idMask) }
func (b *block) setPrev(id uint32) { b.unitsAndPrev = b.unitsAndPrev&^idMask | uint64(id) }
func (b *block) state() State      { return State(b.packed & stateMask) }
func (b *block) setState(s State)  { b.packed = b.packed&^stateMask | uint64(s) }

// requested returns the number of requested bytes of a block that is not free.
func (b *block) requested() int64 { return int64(b.packed >> requestedShift) }

// slot returns the slot of a free block's key.
func (b *block) slot() uint32 { return uint32(b.packed >> slotShift) }

// key returns a number that contains the block's position in its high bits and its id in its low
// bits. Blocks with lower positions have lower keys.
func (b *block) key(id uint32) uint64 { return b.positionAndRegion&^idMask | uint64(id) }

func (b *block) setRange(positionAndRegion, units uint64) {
	b.positionAndRegion = positionAndRegion
	b.unitsAndPrev = units<<idBits | b.unitsAndPrev&idMask
}

// blockTable holds the records of all blocks.
type blockTable struct {
	blocks           []block      // by id
	rareFields       []rareFields // by id
	firstUnusedBlock uint32       // id of the first unused record, or 0; linked by block.next
}

// newBlock takes a record out of the list of unused ones, or adds one to the table, and returns its
// id. It can reallocate the table, which invalidates pointers to blocks.
func (t *blockTable) newBlock() uint32 {
	if id := t.firstUnusedBlock; id != 0 {
		t.firstUnusedBlock = t.blocks[id].next
		return id
	}

	t.blocks = append(t.blocks, block{})
	t.rareFields = append(t.rareFields, rareFields{})
	return uint32(len(t.blocks) - 1)
}

// dropBlock makes the record b with the given id unused. It keeps the generation, so that old
// handles are still detected.
func (t *blockTable) dropBlock(b *block, id uint32) {
	b.packed = uint64(unusedRecord)
	b.next = t.firstUnusedBlock
	t.firstUnusedBlock = id
}

// resolveHandle returns the id of a live, parked or deferred block. Errors: ErrFreed, ErrForeign.
func (t *blockTable) resolveHandle(h Handle) (uint32, error) {
	id, generation := uint32(h), uint32(h>>32)
	if id == 0 || int(id) >= len(t.blocks) {
		return 0, ErrForeign
	}

	// Generations wrap around, so the sign of their difference shows which is newer.
	newerBy := int32(generation - t.blocks[id].generation)
	if newerBy < 0 {
		return 0, ErrFreed
	}

	isAllocated := t.blocks[id].state() >= Live // live, parked or deferred
	if newerBy > 0 || !isAllocated {
		return 0, ErrForeign // this Core has not created such a handle yet
	}

	return id, nil
}

// resolveLive returns the id of a live block. Errors: ErrFreed, ErrForeign.
func (t *blockTable) resolveLive(h Handle) (uint32, error) {
	id, err := t.resolveHandle(h)
	if err == nil && t.blocks[id].state() != Live {
		return 0, ErrFreed
	}

	return id, err
}
