package alloc

import (
	"errors"
	"fmt"
)

// Core decides where the blocks of one pool are placed. It is not safe for concurrent use. With
// CreationOrder, Cores with the same Config and the same history of calls place every block
// identically.
type Core struct {
	lifetimes
	hasKeptMemory bool // see HasKeptMemory
	// fullRanges holds the original ranges of blocks that Rebuild has shortened, by block id.
	fullRanges map[uint32]Range
}

// New returns a Core without segments. It returns an error that wraps ErrConfig if config is
// invalid.
func New(config Config) (*Core, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.ensureDefaults()
	c := &Core{lifetimes: lifetimes{
		placer: placer{
			layout: layout{
				freeBlocks: freeBlocks{
					// Id 0 is not used in the tables.
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
	c.selectStream(0)
	return c, nil
}

// Stats returns counts and sizes of segments and blocks. It takes time proportional to the number
// of streams.
func (c *Core) Stats() Stats {
	c.mergeLastFreed()
	counts := &c.counts
	s := Stats{
		Segments: counts.segmentCount, Live: counts.liveCount,
		Mapped: c.mappedBytes, MappedPeak: counts.peakMappedBytes,
		Used: counts.usedBytes, UsedPeak: counts.peakUsedBytes, Requested: counts.requestedBytes,
		Cached:   c.mappedBytes - counts.usedBytes,
		Deferred: counts.deferredBytes, Parked: counts.parkedBytes, Pinned: counts.pinnedBytes,
	}
	for _, index := range c.indexes {
		if index != nil {
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
	id := uint32(h)
	if uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.generation == uint32(h>>32) && b.state() == Live {
			region := c.regionOf(b)
			view := region.blockView(b, id)
			c.lastOwner = region.owner
			canBeParkedOrDeferred := b.packed&hasRareFieldsBit != 0
			if canBeParkedOrDeferred {
				c.prepareFree()
				c.lastAllocated = 0
				c.counts.liveCount--
				return view, c.freeOrPark(b, id), nil
			}
			if c.lastFreed != 0 || c.reports.hasEntries {
				c.prepareFree()
			}
			c.lastFreedNeighbors = c.neighborStates(b)
			c.freeWithoutMerge(b, id, region.indexID)
			return view, Free, nil
		}
	}
	return Block{}, unusedRecord, c.newFreeError(h)
}

// newFreeError returns the error for a handle that does not identify a live block.
func (c *Core) newFreeError(h Handle) error {
	_, err := c.resolveHandle(h)
	if err == nil || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	return fmt.Errorf("freeing a block by its handle: %w", err)
}

// Pin keeps the memory of a live block allocated for a captured graph, even after Free, until
// Unpin has been called as often as Pin.
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
// frees or defers it.
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
		return Block{}, unusedRecord, fmt.Errorf("unpinning a block: %w", err)
	}
	view, b, fields := c.blockView(id), &c.blocks[id], &c.rareFields[id]
	c.lastOwner = c.regionOf(b).owner
	fields.pins--
	if fields.pins > 0 {
		return view, b.state(), nil
	}
	c.counts.pinnedBytes -= b.size()
	if b.state() == Live || fields.isKept {
		return view, b.state(), nil
	}
	c.counts.parkedBytes -= b.size()
	state := c.freeOrDefer(id)
	if state == Free {
		c.reports.hasEntries = true
		c.reports.returned = append(c.reports.returned, ReturnedBlock{view, c.lastOwner})
	}
	return view, state, nil
}

// Use records that a stream uses a block until the block is freed.
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
	isOwner := streamID == c.indexIDOf(&c.blocks[id])/2
	if isOwner || c.renewUse(&c.rareFields[id], streamID) {
		return nil
	}
	c.addUse(&c.rareFields[id], streamID)
	c.blocks[id].packed |= hasRareFieldsBit
	return nil
}

// RenewUse updates the use of a live block on a stream, as if it had just been recorded. It does
// nothing if there is no such block or use.
func (c *Core) RenewUse(h Handle, stream Stream) {
	id, err := c.resolveLive(h)
	streamID, isKnown := c.streamIDs[stream]
	if err == nil && isKnown {
		c.renewUse(&c.rareFields[id], streamID)
	}
}

// Mark identifies a point in the history of a Core, by the numbers of its earlier uses, deferrals
// and frees.
type Mark struct{ useCount, deferralCount, freeCount uint64 }

// Covers reports whether the event of a deferred block was recorded before the mark.
func (m Mark) Covers(p StreamPoint) bool { return p.Deferral <= m.deferralCount }

// Mark returns the current point in the history.
func (c *Core) Mark() Mark { return Mark{c.useCount, c.deferralCount, c.freeCount} }

// IsUnchangedSince reports whether no block has become free and no use has been recorded since m.
func (c *Core) IsUnchangedSince(m Mark) bool {
	return m.freeCount == c.freeCount && m.useCount == c.useCount
}

// StreamCompleted records that all work that a stream had queued before the mark is complete, and
// that the host has waited for it. It frees the deferred blocks that no stream uses any more.
// ReturnedBlocks lists them, sorted by the number of their owner stream and by their Deferral.
func (c *Core) StreamCompleted(stream Stream, mark Mark) {
	c.mergeLastFreed()
	c.reports.clear()
	streamID, isKnown := c.streamIDs[stream]
	if !isKnown {
		return
	}
	c.streams[streamID].lastCompleteUse = max(c.streams[streamID].lastCompleteUse, mark.useCount)
	c.MarkIdle(stream, mark)
	for _, owner := range c.streamsWithDeferrals() {
		for id := c.streams[owner].firstDeferred; id != 0; {
			next := c.rareFields[id].nextDeferred
			c.endDeferral(id, streamID, mark.deferralCount)
			id = next
		}
	}
}

// MarkIdle records that all work that a stream had queued before the mark is complete. Its free
// memory becomes clean: other streams can use it without waiting. MarkIdle does nothing if a block
// has become free since the mark.
func (c *Core) MarkIdle(stream Stream, mark Mark) {
	streamID, isKnown := c.streamIDs[stream]
	if isKnown && mark.freeCount == c.freeCount {
		c.mergeLastFreed()
		c.markClean(streamID)
	}
}
