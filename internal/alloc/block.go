package alloc

// Stream names a stream of the caller. A block serves only the stream it was allocated on.
// Streams are told apart by this number alone, so ranks must number theirs alike.
type Stream int32

// Handle identifies one lifetime of a block within its Core. The zero Handle is never issued.
// A handle is distinct from all others until its slot was reused 1<<32 times.
type Handle uint64

func makeHandle(id int32, generation uint32) Handle {
	return Handle(generation)<<32 | Handle(uint32(id))
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

// block is the record of one block in the slab of a Core: one cache line without pointers, so
// the garbage collector never scans it. Records link by their number in the slab; number 0 is
// no block. All fields are guarded by whoever guards the Core.
type block struct {
	at         uint64 // position in the arena, in units; see segment.base
	size       int64  // bytes, a multiple of Unit
	requested  int64  // bytes the caller asked for, while not free
	segment    int32  // ordinal
	prev, next int32  // neighbours in the segment; next also chains vacant records
	home       int32  // index of the free blocks it belongs to
	generation uint32 // raised when the block returns
	pins       int32  // graphs that hold it
	class      int32  // free: its class; deferred: the block before it in the queue
	slot       int32  // free: place in the heap of its class; deferred: the block after it
	uses       int32  // first of its uses on other streams
	state      State
}

// maxBlocks is how many records the low bits of an index key can number.
const maxBlocks = 1 << idBits

// grab returns the number of a vacant record. It may move the slab.
func (c *Core) grab() int32 {
	if id := c.vacant; id != 0 {
		c.vacant = c.blocks[id].next
		return id
	}
	c.blocks = append(c.blocks, block{})
	return int32(len(c.blocks) - 1)
}

// drop makes a record vacant. Its generation stays, so stale handles are still told apart.
func (c *Core) drop(b *block, id int32) {
	b.state = vacant
	b.next = c.vacant
	c.vacant = id
}

// view returns the block as callers know it.
func (c *Core) view(id int32) Block {
	b := &c.blocks[id]
	return Block{
		Segment: b.segment,
		Offset:  int64(b.at-c.segments[b.segment].base) << unitShift,
		Size:    b.size,
		Handle:  makeHandle(id, b.generation),
	}
}

// resolve returns the record of a block that was not returned yet.
func (c *Core) resolve(v Block) (int32, error) {
	id, err := c.resolveHandle(v.Handle)
	if err != nil {
		return 0, err
	}
	if b := &c.blocks[id]; b.segment != v.Segment || b.size != v.Size {
		return 0, ErrForeign
	}
	return id, nil
}

// resolveHandle is resolve for a handle alone.
func (c *Core) resolveHandle(h Handle) (int32, error) {
	id := int32(uint32(h))
	if id <= 0 || int(id) >= len(c.blocks) {
		return 0, ErrForeign
	}
	switch age := int32(uint32(h>>32) - c.blocks[id].generation); {
	case age < 0:
		return 0, ErrFreed
	case age > 0 || c.blocks[id].state < Live:
		return 0, ErrForeign
	}
	return id, nil
}

// live is resolve for blocks that are still in the hands of a caller.
func (c *Core) live(v Block) (int32, error) {
	id, err := c.resolve(v)
	if err == nil && c.blocks[id].state != Live {
		return 0, ErrFreed
	}
	return id, err
}
