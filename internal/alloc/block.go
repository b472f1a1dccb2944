package alloc

// Handle identifies a block until the block is freed. It is never 0.
type Handle uint64

// makeHandle combines the id and the generation of a record.
func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block describes an allocated range of a segment.
type Block struct {
	Segment int32 // position in the order of creation, from 0
	Offset  int64 // bytes from the start of the segment
	Size    int64 // bytes
	Handle  Handle
}

// State is the state of a block.
type State uint8

// The states of a block.
const (
	noState  State = iota // of unused records, sentinels and placer.lastFreed
	Free                  // its stream can allocate it
	Live                  // allocated and not freed
	Parked                // not live, but allocated: pinned or kept by Rebuild
	Deferred              // freed, but other streams may still use it
)

func (s State) String() string {
	return [...]string{"none", "free", "live", "parked", "deferred"}[s]
}

// Ids of blocks and of regions have idBits.
const (
	idBits = 26
	idMask = 1<<idBits - 1
	maxIDs = 1 << idBits
)

// maxPosition is the highest end of a segment. Positions count units of 512 bytes across all
// segments.
const maxPosition = uint64(1) << (64 - idBits)

// block is a record of 32 bytes, half a cache line. The blocks of a region (a part of a segment)
// form a circular list in order of position. The list ends with a sentinel, a record without
// memory.
type block struct {
	positionAndRegion uint64 // region id in the low idBits, position above
	unitsAndPrev      uint64 // id of the previous block in the low idBits, size in units above
	next              uint32 // id of the next block in the region, or of the next unused record
	generation        uint32 // number of frees of blocks with this record
	// packed holds the state and hasRareFieldsBit in the low 4 bits. The other bits hold the requested
	// bytes or, for a free block, the slot in its bag.
	packed uint64
}

// The parts of block.packed.
const (
	stateMask        = 7
	hasRareFieldsBit = 8 // set once a field of rareFields has been set
	valueShift       = 4
)

// rareFields holds the fields that most blocks do not need.
type rareFields struct {
	pins                       int32  // calls of Core.Pin minus calls of Core.Unpin
	firstUse                   uint32 // first use by another stream, in useTable.uses, or 0
	prevDeferred, nextDeferred uint32 // neighbors in the owner's list of deferred blocks, or 0
	isKept                     bool   // the block stays allocated until the next Rebuild
}

func (b *block) position() uint64  { return b.positionAndRegion >> idBits }
func (b *block) region() uint32    { return uint32(b.positionAndRegion & idMask) }
func (b *block) units() uint64     { return b.unitsAndPrev >> idBits }
func (b *block) size() int64       { return int64(b.unitsAndPrev>>idBits) << unitShift }
func (b *block) prev() uint32      { return uint32(b.unitsAndPrev & idMask) }
func (b *block) setPrev(id uint32) { b.unitsAndPrev = (b.unitsAndPrev &^ idMask) | uint64(id) }
func (b *block) state() State      { return State(b.packed & stateMask) }
func (b *block) setState(s State)  { b.packed = (b.packed &^ stateMask) | uint64(s) }

// requested returns the requested size in bytes. The block must not be free.
func (b *block) requested() int64 { return int64(b.packed >> valueShift) }

// slot returns the index of the block's key in its bag. The block must be free.
func (b *block) slot() uint32 { return uint32(b.packed >> valueShift) }

// key combines the position with the id, so that keys sort by position.
func (b *block) key(id uint32) uint64 { return (b.positionAndRegion &^ idMask) | uint64(id) }

// markFree also clears hasRareFieldsBit.
func (b *block) markFree(slot uint32) { b.packed = uint64(Free) | uint64(slot)<<valueShift }

func (b *block) setRange(positionAndRegion, units uint64) {
	b.positionAndRegion = positionAndRegion
	b.unitsAndPrev = (units << idBits) | (b.unitsAndPrev & idMask)
}

// blockTable holds all records, by id.
type blockTable struct {
	blocks           []block // entry 0 is unused
	rareFields       []rareFields
	firstUnusedBlock uint32 // head of a free list of record ids, or 0
}

// newBlock returns the id of an unused record. It can reallocate t.blocks and t.rareFields.
func (t *blockTable) newBlock() uint32 {
	if id := t.firstUnusedBlock; id != 0 {
		t.firstUnusedBlock = t.blocks[id].next
		return id
	}

	t.blocks = append(t.blocks, block{})
	t.rareFields = append(t.rareFields, rareFields{})
	return uint32(len(t.blocks) - 1)
}

// dropBlock recycles a record, but keeps its generation, so that old handles remain invalid.
func (t *blockTable) dropBlock(b *block, id uint32) {
	b.packed = uint64(noState)
	b.next = t.firstUnusedBlock
	t.firstUnusedBlock = id
}

// resolveHandle returns the id of a live, parked or deferred block. Errors: ErrFreed, ErrForeign.
func (t *blockTable) resolveHandle(h Handle) (uint32, error) {
	id, generation := uint32(h), uint32(h>>32) // see makeHandle
	if id == 0 || int(id) >= len(t.blocks) {
		return 0, ErrForeign
	}

	b := &t.blocks[id]
	isOlder := int32(generation-b.generation) < 0 // correct after a wraparound
	if isOlder {
		return 0, ErrFreed
	}

	hasHandle := b.state() >= Live // live, parked or deferred
	if generation != b.generation || !hasHandle {
		return 0, ErrForeign // this Core has never issued such a handle
	}

	return id, nil
}

// resolveLive returns the id of a live block. Errors: ErrFreed (also for a parked or deferred
// block), ErrForeign.
func (t *blockTable) resolveLive(h Handle) (uint32, error) {
	id, err := t.resolveHandle(h)
	if err == nil && t.blocks[id].state() != Live {
		return 0, ErrFreed
	}

	return id, err
}
