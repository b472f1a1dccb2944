package alloc

// Stream is the caller's name for a stream: a queue of work for a device. Ranks may use different
// names for the same stream. The stream's Core.Number is the same on all ranks.
type Stream int32

// Handle identifies a block until the block is freed. It is never 0. A value can occur again only
// after 1<<32 other blocks.
type Handle uint64

// makeHandle packs two numbers: the id of the record that describes the block, and the generation.
// Blocks use the same record one after the other. Each has a different generation.
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

// State is the state of a block. For example, Alloc returns a block for stream 1, so the block is
// live. If the program frees the block, its state depends on two things:
//
//   - A block is pinned while a captured graph uses it. A pinned block becomes parked: its memory
//     stays allocated until the last Unpin.
//   - A block has uses while other streams can still use it: Core.Use has recorded these streams,
//     and their work may not be complete. A block with uses that is not pinned becomes deferred:
//     its memory is not free until the work is complete, or until Alloc needs it.
//
// Otherwise, the block becomes free at once:
//
//	live ──Free──────────────> free
//	live ──Free while pinned─> parked ──last Unpin────────────────> free, or deferred if it has uses
//	live ──Free with uses────> deferred ──StreamCompleted or Alloc─> free
//	free ──Alloc─────────────> live
type State uint8

// The states of a block.
const (
	unusedRecord State = iota // a sentinel, an unused record, or the block that was freed last
	Free                      // ready for an Alloc of its stream
	Live                      // allocated
	Parked                    // freed while pinned, or kept by Rebuild
	Deferred                  // freed while other streams can still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"unused record", "free", "live", "parked", "deferred"}[s]
}

// A 64-bit word of a record holds two numbers: a position or a size in its 38 high bits, and the id
// of a block or region in its 26 low bits. An id of 0 means "none".
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits // also limits the number of regions
)

// maxPosition limits the positions of blocks. All segments together form the arena. A position in
// the arena is a number of units. A unit is 512 bytes.
const maxPosition = uint64(1) << (64 - idBits)

// block is the record of a block. A record has half the size of a cache line, so that reading it
// causes at most one cache miss.
//
// The blocks of a region, which is a part of a segment, form a circular list in the order of their
// positions. The list also contains a sentinel: a record without memory, which is between the last
// block and the first.
type block struct {
	positionAndRegion uint64 // position in the arena; the low bits hold the id of the region
	unitsAndPrev      uint64 // size in units; the low bits hold the id of the previous block
	next              uint32 // id of the next block in the region, or of the next unused record
	generation        uint32 // number of freed blocks that used this record
	// packed holds the state in the bits 0 to 2, and hasRareFieldsBit in bit 3. In the high bits, a
	// free block has its slot: an index in an array of free blocks (see bag). Other blocks have the
	// number of requested bytes there.
	packed uint64
}

// The parts of block.packed.
const (
	stateMask        = 7
	hasRareFieldsBit = 8 // set if the block has been pinned, kept or used by another stream
	requestedShift   = 4
	slotShift        = 4
)

// rareFields holds those fields of a record that most blocks do not need. They are used only for
// blocks that are pinned, kept or deferred, or have uses.
type rareFields struct {
	pins                       int32  // number of calls of Core.Pin that no Unpin has undone
	firstUse                   uint32 // id of the first use in useTable.uses, or 0
	prevDeferred, nextDeferred uint32 // ids of other deferred blocks of the same stream, or 0
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

// key returns a number that contains the block's position in the high bits and its id in the low
// bits. Blocks with lower positions have lower keys.
func (b *block) key(id uint32) uint64 { return b.positionAndRegion&^idMask | uint64(id) }

// setRange sets the position, the region and the size, but not the id of the previous block.
func (b *block) setRange(positionAndRegion, units uint64) {
	b.positionAndRegion = positionAndRegion
	b.unitsAndPrev = units<<idBits | b.unitsAndPrev&idMask
}

// blockTable holds all records.
type blockTable struct {
	blocks           []block      // by id
	rareFields       []rareFields // by id
	firstUnusedBlock uint32       // id of the first unused record, or 0
}

// newBlock returns the id of a record for a new block. It can reallocate the table, which
// invalidates pointers to records.
func (t *blockTable) newBlock() uint32 {
	if id := t.firstUnusedBlock; id != 0 {
		t.firstUnusedBlock = t.blocks[id].next
		return id
	}

	t.blocks = append(t.blocks, block{})
	t.rareFields = append(t.rareFields, rareFields{})
	return uint32(len(t.blocks) - 1)
}

// dropBlock makes the record b with the given id unused. The generation stays, so that the
// handles of earlier blocks remain invalid.
func (t *blockTable) dropBlock(b *block, id uint32) {
	b.packed = uint64(unusedRecord)
	b.next = t.firstUnusedBlock
	t.firstUnusedBlock = id
}

// resolveHandle returns the id of a live, parked or deferred block. Errors: ErrFreed, ErrForeign.
func (t *blockTable) resolveHandle(h Handle) (uint32, error) {
	id, generation := uint32(h), uint32(h>>32) // the reverse of makeHandle
	if id == 0 || int(id) >= len(t.blocks) {
		return 0, ErrForeign
	}

	// Generations wrap around after 1<<32 blocks. The sign of their difference still shows which one
	// is newer.
	newerBy := int32(generation - t.blocks[id].generation)
	if newerBy < 0 {
		return 0, ErrFreed // the handle identified an earlier block
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
