package alloc

// Stream is the caller's name for a stream. It can differ between ranks, unlike Core.Number.
type Stream int32

// Handle identifies a block until it is freed. It is never 0, and is reused after 1<<32 blocks.
type Handle uint64

func makeHandle(id, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(id)
}

// Block describes an allocated range of a segment. It fits into registers.
type Block struct {
	Segment int32
	Offset  int64 // in bytes
	Size    int64
	Handle  Handle
}

// State is the state of a block. Core.Use adds a use.
//
//	free ──Alloc──> live ──Free──────────────────────────────> free
//	                 │ ├──Free while pinned──> parked ──Unpin──> free or deferred
//	                 │ └──Free with uses────> deferred ──StreamCompleted or Alloc──> free
//	                 └──Pin, Unpin, Use keep it live
type State uint8

// The states of a block.
const (
	unusedRecord State = iota
	Free               // ready for an Alloc of its stream
	Live               // allocated
	Parked             // freed while pinned
	Deferred           // freed while other streams can still use it
)

// String returns the state in lower case.
func (s State) String() string {
	return [...]string{"unused record", "free", "live", "parked", "deferred"}[s]
}

// Ids have 26 bits, to share a word with a position or size. Id 0 is unused.
const (
	idBits    = 26
	idMask    = 1<<idBits - 1
	maxBlocks = 1 << idBits
)

const maxPosition = uint64(1) << (64 - idBits)

// block has half a cache line, so that reading it causes at most one cache miss.
type block struct {
	positionAndRegion uint64 // position in units in the arena; low bits: the region
	unitsAndPrev      uint64 // size in units; low bits: the previous block in the region
	next              uint32
	generation        uint32 // number of blocks that used this record before
	// The lowest bits of packed hold the state, then hasRareFieldsBit. The others hold the slot of
	// a free block's key (see bag), or the bytes requested for another block.
	packed uint64
}

const (
	stateMask        = 7
	hasRareFieldsBit = 8
	requestedShift   = 4
	slotShift        = 4
)

// rareFields are used only in pinned, kept, deferred or shared blocks.
type rareFields struct {
	pins                       int32
	firstUse                   uint32
	prevDeferred, nextDeferred uint32
	isKept                     bool // stays allocated until the next Rebuild
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

// key orders blocks by position.
func (b *block) key(id uint32) uint64 { return b.positionAndRegion&^idMask | uint64(id) }

func (b *block) setRange(positionAndRegion, units uint64) {
	b.positionAndRegion, b.unitsAndPrev = positionAndRegion, units<<idBits|b.unitsAndPrev&idMask
}

type blockTable struct {
	blocks           []block
	rareFields       []rareFields
	firstUnusedBlock uint32
}

// newBlock can reallocate the table.
func (t *blockTable) newBlock() uint32 {
	if id := t.firstUnusedBlock; id != 0 {
		t.firstUnusedBlock = t.blocks[id].next
		return id
	}
	t.blocks = append(t.blocks, block{})
	t.rareFields = append(t.rareFields, rareFields{})
	return uint32(len(t.blocks) - 1)
}

// dropBlock keeps the generation, so that stale handles are detected.
func (t *blockTable) dropBlock(b *block, id uint32) {
	b.packed = uint64(unusedRecord)
	b.next = t.firstUnusedBlock
	t.firstUnusedBlock = id
}

func (t *blockTable) resolveHandle(h Handle) (uint32, error) {
	id := uint32(h)
	if id == 0 || int(id) >= len(t.blocks) {
		return 0, ErrForeign
	}
	switch newerBy := int32(uint32(h>>32) - t.blocks[id].generation); {
	case newerBy < 0:
		return 0, ErrFreed
	case newerBy > 0 || t.blocks[id].state() < Live:
		return 0, ErrForeign
	}
	return id, nil
}

func (t *blockTable) resolveLive(h Handle) (uint32, error) {
	id, err := t.resolveHandle(h)
	if err == nil && t.blocks[id].state() != Live {
		return 0, ErrFreed
	}
	return id, err
}
