package alloc

import (
	"errors"
	"fmt"
)

// Core decides where the blocks of one arena are placed. It has no lock and does no I/O.
//
// The calls that change a Core form its history. Under the Creation policy, Cores with the same
// Config and the same history place every block identically.
type Core struct {
	lifetimes
	hasKept bool // see HasKept
	// cutBlocks holds the full ranges of parked blocks whose records a rebuild has shortened.
	cutBlocks map[uint32]Range
}

// New returns an empty Core. Error: ErrConfig.
func New(config Config) (*Core, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.ensureDefaults()
	c := &Core{lifetimes: lifetimes{
		placer: placer{
			layout: layout{
				freeBlocks: freeBlocks{
					slab:    slab{blocks: make([]block, 1, 64), extras: make([]extra, 1, 64)},
					keys:    make([]uint64, 1, 64),
					classes: make([]class, 1, 64),
				},
				regions: make([]region, 1),
			},
			config:    config,
			geometric: config.Sizing == Geometric,
		},
		streamTable: streamTable{records: map[Stream]uint32{}},
		useTable:    useTable{uses: make([]use, 1)},
	}}
	c.selectStream(0)
	return c, nil
}

// Stats returns the current counters. It takes time proportional to the number of streams.
func (c *Core) Stats() Stats {
	c.mergeHot()
	n := &c.counts
	s := Stats{
		Segments: n.segments, Live: n.live,
		Mapped: c.mapped, MappedPeak: n.peakMapped,
		Used: n.used, UsedPeak: n.peakUsed, Requested: n.requested, Cached: c.mapped - n.used,
		Deferred: n.deferred, Parked: n.parked, Pinned: n.pinned,
	}
	for _, index := range c.indexes {
		if index != nil {
			s.LargestFree = max(s.LargestFree, c.largest(index))
		}
	}
	return s
}

// Live returns the block of a handle if the block is live. Errors: ErrFreed, ErrForeign.
func (c *Core) Live(h Handle) (Block, error) {
	id, err := c.live(h)
	if err != nil {
		return Block{}, err
	}
	return c.view(id), nil
}

// Owner returns the Number of the stream that owns the block most recently returned by a method.
func (c *Core) Owner() uint32 { return c.owner }

// FreeHandle frees a block and returns it with its new state: Free, Parked if a graph pins it, or
// Deferred if other streams may still use it. For a deferred block, EventsToRecord lists the
// streams on which the caller must record events.
//
// Errors: ErrDoubleFree, ErrForeign. Both leave the Core unchanged.
func (c *Core) FreeHandle(h Handle) (Block, State, error) {
	id := uint32(h)
	if uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.generation == uint32(h>>32) && b.state() == Live {
			r := c.regionOf(b)
			v := r.view(b, id)
			c.owner = r.owner
			if b.packed&hasExtra != 0 {
				c.beforeFree()
				c.lastAlloc = 0
				c.counts.live--
				return v, c.freeInUse(b, id), nil
			}
			if c.hot != 0 || c.reports.filled {
				c.beforeFree()
			}
			c.neighbors = c.freeNeighbors(b)
			c.freeHot(b, id, r.indexID)
			return v, Free, nil
		}
	}
	return Block{}, vacant, c.refuseHandle(h)
}

func (c *Core) refuseHandle(h Handle) error {
	_, err := c.resolve(h)
	if err == nil || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	return fmt.Errorf("freeing a block by its handle: %w", err)
}

// Pin marks a block whose address a captured graph contains. The block stays allocated until every
// Pin has been matched by an Unpin.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Pin(h Handle) (Block, error) {
	c.mergeHot()
	c.reports.clear()
	id, err := c.live(h)
	if err != nil {
		return Block{}, fmt.Errorf("pinning a block: %w", err)
	}
	if c.extras[id].pins == 0 {
		c.counts.pinned += c.blocks[id].size()
	}
	c.extras[id].pins++
	c.blocks[id].packed |= hasExtra
	c.owner = c.regionOf(&c.blocks[id]).owner
	return c.view(id), nil
}

// Unpin undoes one Pin and returns the block with its state. The last Unpin of a parked block frees
// or defers it.
//
// Errors: ErrNotPinned, ErrFreed, ErrForeign.
func (c *Core) Unpin(h Handle) (Block, State, error) {
	c.mergeHot()
	c.reports.clear()
	id, err := c.resolve(h)
	if err == nil && c.extras[id].pins == 0 {
		err = ErrNotPinned
	}
	if err != nil {
		return Block{}, vacant, fmt.Errorf("unpinning a block: %w", err)
	}
	v, b, side := c.view(id), &c.blocks[id], &c.extras[id]
	c.owner = c.regionOf(b).owner
	if side.pins--; side.pins > 0 {
		return v, b.state(), nil
	}
	c.counts.pinned -= b.size()
	if b.state() == Live || side.kept {
		return v, b.state(), nil
	}
	c.counts.parked -= b.size()
	state := c.freeOrDefer(id)
	if state == Free {
		c.reports.filled = true
		c.reports.returned = append(c.reports.returned, Return{v, c.owner})
	}
	return v, state, nil
}

// Use records that a stream uses a block from now until the block is freed.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Use(h Handle, on Stream) error {
	c.mergeHot()
	c.reports.clear()
	id, err := c.live(h)
	if err != nil {
		return fmt.Errorf("using a block: %w", err)
	}
	n := c.record(on)
	if n == c.indexOf(&c.blocks[id])/2 || c.renewUse(&c.extras[id], n) {
		return nil
	}
	c.addUse(&c.extras[id], n)
	c.blocks[id].packed |= hasExtra
	return nil
}

// UseAgain renews a live block's use on a stream, so that earlier Marks do not cover it.
func (c *Core) UseAgain(h Handle, on Stream) {
	id, err := c.live(h)
	n, known := c.records[on]
	if err == nil && known {
		c.renewUse(&c.extras[id], n)
	}
}

// Mark is a point in the history of a Core.
type Mark struct{ uses, deferrals, frees uint64 }

// Covers reports whether the event of a deferred block was recorded before the mark.
func (m Mark) Covers(p StreamPoint) bool { return p.Deferral <= m.deferrals }

// Mark returns the current point in the history.
func (c *Core) Mark() Mark { return Mark{c.recorded, c.lastDeferral, c.frees} }

// QuietSince reports whether no block has become free and no use has been recorded since the mark.
func (c *Core) QuietSince(m Mark) bool { return m.frees == c.frees && m.uses == c.recorded }

// Synced records that the host has waited for all work that a stream had queued before the mark. It
// calls Idle, and then frees the deferred blocks that no stream uses any more. Returned lists these
// in the order of their streams' numbers and then of their deferrals.
func (c *Core) Synced(on Stream, before Mark) {
	c.mergeHot()
	c.reports.clear()
	n, known := c.records[on]
	if !known {
		return
	}
	c.streams[n].completeUse = max(c.streams[n].completeUse, before.uses)
	c.Idle(on, before)
	for _, s := range c.deferringStreams() {
		for id := c.streams[s].firstDeferred; id != 0; {
			after := c.extras[id].nextDeferred
			c.endDeferral(id, n, before.deferrals)
			id = after
		}
	}
}

// Idle records that all work that a stream had queued before the mark is complete. The stream's
// free memory becomes clean, unless a block has become free since the mark.
func (c *Core) Idle(on Stream, before Mark) {
	n, known := c.records[on]
	if known && before.frees == c.frees {
		c.mergeHot()
		c.cleanStream(n)
	}
}
