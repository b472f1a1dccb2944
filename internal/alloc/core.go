package alloc

import (
	"errors"
	"fmt"
)

// Core decides where the blocks of one pool are placed, in segments that AddSegment adds. It is not
// safe for concurrent use. With CreationOrder, Cores with the same Config and the same history of
// calls place every block identically.
type Core struct {
	lifetimes
	hasKeptMemory bool // see the method HasKeptMemory
	// fullRanges holds the original ranges of blocks that Rebuild has shortened. Keys are ids of
	// blocks.
	fullRanges map[uint32]Range
}

// New returns a Core without segments. It returns an error that wraps ErrConfig if config is
// invalid.
func New(config Config) (*Core, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}

	config.ensureDefaults()
	// Tables that begin with a length of 1 do not use entry 0, so that an id of 0 can mean "none".
	c := &Core{lifetimes: lifetimes{
		placer: placer{
			layout: layout{
				freeBlocks: freeBlocks{
					blockTable: blockTable{
						blocks: make([]block, 1, 64), rareFields: make([]rareFields, 1, 64),
					},
					keys:    make([]uint64, 1, 64),
					classes: make([]sizeClass, 1, 64),
				},
				regions: make([]region, 1),
			},
			config:      config,
			isGeometric: config.Sizing == Geometric,
		},
		streamTable: streamTable{streamIDs: map[Stream]uint32{}},
		useTable:    useTable{uses: make([]use, 1)},
	}}
	c.selectStream(0) // so that Stream 0 has id 0
	return c, nil
}

// Stats returns counts and sizes of segments and blocks. It takes time proportional to the number
// of streams.
func (c *Core) Stats() Stats {
	c.mergeLastFreed()
	counts := &c.counts
	s := Stats{
		Segments:   counts.segmentCount,
		Live:       counts.liveCount,
		Mapped:     c.mappedBytes,
		MappedPeak: counts.peakMappedBytes,
		Used:       counts.usedBytes,
		UsedPeak:   counts.peakUsedBytes,
		Requested:  counts.requestedBytes,
		Cached:     c.mappedBytes - counts.usedBytes,
		Deferred:   counts.deferredBytes,
		Parked:     counts.parkedBytes,
		Pinned:     counts.pinnedBytes,
	}
	for _, index := range c.indexes {
		if index != nil { // an index of free blocks is nil until its stream needs it
			s.LargestFree = max(s.LargestFree, c.largestBlock(index))
		}
	}

	return s
}

// LiveBlock returns the live block that a handle identifies. Errors: ErrFreed, ErrForeign.
func (c *Core) LiveBlock(h Handle) (Block, error) {
	id, err := c.resolveLive(h)
	if err != nil {
		return Block{}, err
	}

	return c.blockView(id), nil
}

// Owner returns the Number of the stream that owns the block that the latest call returned.
func (c *Core) Owner() uint32 { return c.lastOwner }

// FreeHandle frees a block and returns its new state. The block becomes Parked if it is pinned. It
// becomes Deferred if other streams can still use it, and the caller must then record the events
// in EventsToRecord. Otherwise, it becomes Free.
//
// Errors: ErrDoubleFree, ErrForeign. Both leave the Core unchanged.
func (c *Core) FreeHandle(h Handle) (Block, State, error) {
	id, generation := uint32(h), uint32(h>>32) // see makeHandle
	if uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.generation == generation && b.state() == Live {
			region := c.regionOf(b)
			view := region.blockView(b, id) // before the free, which changes the generation
			c.lastOwner = region.owner
			// Without the bit, the block has never been pinned, kept or used by another stream.
			canBeParkedOrDeferred := b.packed&hasRareFieldsBit != 0
			if canBeParkedOrDeferred {
				c.prepareFree()
				c.lastAllocated = 0 // the latest call is no longer an Alloc
				c.counts.liveCount--
				state := c.freeOrPark(b, id)
				return view, state, nil
			}

			if c.lastFreed != 0 || c.reports.hasEntries { // usually saves a call
				c.prepareFree()
			}

			c.lastFreedNeighbors = c.freeNeighborsOf(b)
			c.freeWithoutMerge(b, id, region.indexID)
			return view, Free, nil
		}
	}

	return Block{}, noState, c.newFreeError(h)
}

// newFreeError returns the error for a handle that does not identify a live block.
func (c *Core) newFreeError(h Handle) error {
	_, err := c.resolveHandle(h)
	isParkedOrDeferred := err == nil // the handle is valid, but not that of a live block
	if isParkedOrDeferred || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}

	return fmt.Errorf("freeing a block by its handle: %w", err)
}

// Pin keeps the memory of a live block allocated, for a captured graph that uses it. A Free does
// not end this. The memory stays allocated until Unpin has been called as often as Pin.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Pin(h Handle) (Block, error) {
	c.mergeLastFreed()
	c.reports.clear()
	id, err := c.resolveLive(h)
	if err != nil {
		return Block{}, fmt.Errorf("pinning a block: %w", err)
	}

	if c.rareFields[id].pins == 0 {
		c.counts.pinnedBytes += c.blocks[id].size()
	}

	c.rareFields[id].pins++
	c.blocks[id].packed |= hasRareFieldsBit
	c.lastOwner = c.regionOf(&c.blocks[id]).owner
	return c.blockView(id), nil
}

// Unpin undoes one Pin, and returns the block and its new state. The last Unpin of a parked block
// defers the block if other streams can still use it. Otherwise, the block becomes free.
//
// Errors: ErrNotPinned, ErrFreed, ErrForeign.
func (c *Core) Unpin(h Handle) (Block, State, error) {
	c.mergeLastFreed()
	c.reports.clear()
	id, err := c.resolveHandle(h)
	if err == nil && c.rareFields[id].pins == 0 {
		err = ErrNotPinned
	}

	if err != nil {
		return Block{}, noState, fmt.Errorf("unpinning a block: %w", err)
	}

	view := c.blockView(id)
	b, fields := &c.blocks[id], &c.rareFields[id]
	c.lastOwner = c.regionOf(b).owner
	fields.pins--
	if fields.pins > 0 {
		return view, b.state(), nil
	}

	c.counts.pinnedBytes -= b.size()
	staysAllocated := b.state() == Live || fields.isKept // isKept: until the next Rebuild
	if staysAllocated {
		return view, b.state(), nil
	}

	// A pinned block that is not live is parked.
	c.counts.parkedBytes -= b.size()
	state := c.freeOrDefer(id)
	if state == Free {
		c.reports.hasEntries = true
		returned := ReturnedBlock{Block: view, Owner: c.lastOwner}
		c.reports.returned = append(c.reports.returned, returned)
	}

	return view, state, nil
}

// Use records that a stream may use a block until the block is freed. A use by the stream that
// owns the block needs no record.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Use(h Handle, stream Stream) error {
	c.mergeLastFreed()
	c.reports.clear()
	id, err := c.resolveLive(h)
	if err != nil {
		return fmt.Errorf("using a block: %w", err)
	}

	streamID := c.ensureStream(stream)
	ownerID := streamIDOf(c.indexIDOf(&c.blocks[id]))
	if streamID == ownerID {
		return nil
	}

	if isKnown := c.renewUse(&c.rareFields[id], streamID); isKnown {
		return nil
	}

	c.addUse(&c.rareFields[id], streamID)
	c.blocks[id].packed |= hasRareFieldsBit
	return nil
}

// RenewUse makes a recorded use of a live block as recent as if Use had just recorded it. It does
// nothing if the handle identifies no live block, or if the block has no use on the stream.
func (c *Core) RenewUse(h Handle, stream Stream) {
	id, err := c.resolveLive(h)
	if err != nil {
		return
	}

	if streamID, isKnown := c.streamIDs[stream]; isKnown {
		c.renewUse(&c.rareFields[id], streamID)
	}
}

// Mark identifies a point in the history of a Core. It counts the uses, deferrals and frees before
// this point.
type Mark struct{ useCount, deferralCount, freeCount uint64 }

// Covers reports whether the block of p was deferred before the mark.
func (m Mark) Covers(p StreamPoint) bool { return p.Deferral <= m.deferralCount }

// Mark returns the current point in the history.
func (c *Core) Mark() Mark {
	return Mark{useCount: c.useCount, deferralCount: c.deferralCount, freeCount: c.freeCount}
}

// IsUnchangedSince reports whether no block has become free and no use has been recorded since m.
func (c *Core) IsUnchangedSince(m Mark) bool {
	return m.freeCount == c.freeCount && m.useCount == c.useCount
}

// StreamCompleted records that the host has waited for all work that a stream had queued before the
// mark. It frees the deferred blocks that no stream uses any more. ReturnedBlocks lists these
// blocks, sorted by the number of their owner stream and by their Deferral.
func (c *Core) StreamCompleted(stream Stream, mark Mark) {
	c.mergeLastFreed()
	c.reports.clear()
	streamID, isKnown := c.streamIDs[stream]
	if !isKnown {
		return
	}

	completed := &c.streams[streamID]
	completed.lastCompleteUse = max(completed.lastCompleteUse, mark.useCount)
	c.MarkIdle(stream, mark)
	for _, ownerID := range c.streamsWithDeferrals() {
		id := c.streams[ownerID].firstDeferred
		for id != 0 {
			next := c.rareFields[id].nextDeferred // before completeUse, which can unlink the block
			c.completeUse(id, streamID, mark.deferralCount)
			id = next
		}
	}
}

// MarkIdle records that all work that a stream had queued before the mark is complete. The stream's
// free memory becomes clean: other streams can use it without waiting. MarkIdle does nothing if a
// block has become free since the mark, because later work can still use that block.
func (c *Core) MarkIdle(stream Stream, mark Mark) {
	streamID, isKnown := c.streamIDs[stream]
	if isKnown && mark.freeCount == c.freeCount {
		c.mergeLastFreed()
		c.markClean(streamID)
	}
}
