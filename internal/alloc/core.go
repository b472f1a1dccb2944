package alloc

import (
	"errors"
	"fmt"
)

// Core decides where the blocks of one arena are placed. It has no lock and does no I/O: the caller
// serializes calls, maps segments and records events.
//
// The calls that change a Core form its history. Under the Creation policy, Cores with the same
// Config and the same history place every block identically, even if their segment addresses
// differ.
type Core struct {
	lifetimes
	keeps bool // see Keeps
	// cutBlocks maps the number of a parked block to its full range, if a rebuild has shortened the
	// block's record.
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
					slab:    slab{blocks: make([]block, 1, 64), sides: make([]side, 1, 64)},
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
		Used: n.used, UsedPeak: n.peak, Requested: n.requested, Cached: c.mapped - n.used,
		Deferred: n.deferred, Parked: n.parked, Pinned: n.pinned,
	}
	for _, x := range c.homes {
		if x != nil {
			s.LargestFree = max(s.LargestFree, c.largest(x))
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

// Owner returns the Number of the stream that owns the block that Alloc, FreeHandle, Pin or
// Unpin most recently returned.
func (c *Core) Owner() uint32 { return c.owner }

// FreeHandle frees a block and returns it with its new state: Free if the block can be allocated
// again immediately, Parked if a graph pins it, or Deferred if other streams may still use it. For
// a deferred block, EventsToRecord lists the streams on which the caller must record events.
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
			if b.packed&hasSide != 0 {
				c.beforeFree()
				c.lastAlloc = 0
				c.counts.live--
				return v, c.freeHeld(b, id), nil
			}
			if c.hot != 0 || c.reports.filled {
				c.beforeFree()
			}
			c.neighbors = c.freeNeighbors(b)
			c.freeHot(b, id, r.home)
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

// Pin marks a block whose address a captured graph contains, and returns the block. If a pinned
// block is freed, it stays allocated until every Pin has been matched by an Unpin.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Pin(h Handle) (Block, error) {
	c.mergeHot()
	c.reports.clear()
	id, err := c.live(h)
	if err != nil {
		return Block{}, fmt.Errorf("pinning a block: %w", err)
	}
	if c.sides[id].pins == 0 {
		c.counts.pinned += c.blocks[id].size()
	}
	c.sides[id].pins++
	c.blocks[id].packed |= hasSide
	c.owner = c.regionOf(&c.blocks[id]).owner
	return c.view(id), nil
}

// Unpin undoes one Pin and returns the block with its state. The last Unpin of a parked block makes
// the block Free (see Returned) or Deferred (see EventsToRecord). In all other cases, the state
// does not change.
//
// Errors: ErrNotPinned, ErrFreed, ErrForeign.
func (c *Core) Unpin(h Handle) (Block, State, error) {
	c.mergeHot()
	c.reports.clear()
	id, err := c.resolve(h)
	if err == nil && c.sides[id].pins == 0 {
		err = ErrNotPinned
	}
	if err != nil {
		return Block{}, vacant, fmt.Errorf("unpinning a block: %w", err)
	}
	v, b, side := c.view(id), &c.blocks[id], &c.sides[id]
	c.owner = c.regionOf(b).owner
	if side.pins--; side.pins > 0 {
		return v, b.state(), nil
	}
	c.counts.pinned -= b.size()
	if b.state() == Live || side.kept {
		return v, b.state(), nil
	}
	c.counts.parked -= b.size()
	state := c.release(id)
	if state == Free {
		c.reports.filled = true
		c.reports.returned = append(c.reports.returned, Return{v, c.owner})
	}
	return v, state, nil
}

// Use records that a block is used on a stream from now until it is freed. Uses on the block's own
// stream are ignored.
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
	if n == c.homeOf(&c.blocks[id])/2 || c.repeatUse(&c.sides[id], n) {
		return nil
	}
	c.addUse(&c.sides[id], n)
	c.blocks[id].packed |= hasSide
	return nil
}

// UseAgain renews a live block's use on a stream: a Mark taken before the call no longer covers the
// use. It does nothing if the block has been freed or has no use on that stream.
func (c *Core) UseAgain(h Handle, on Stream) {
	id, err := c.live(h)
	n, known := c.records[on]
	if err == nil && known {
		c.repeatUse(&c.sides[id], n)
	}
}

// Mark is a point in the history of a Core.
type Mark struct{ uses, deferrals, frees uint64 }

// Covers reports whether the event of a deferred block was recorded before the mark.
func (m Mark) Covers(p StreamPoint) bool { return p.Deferral <= m.deferrals }

// Mark returns the current point in the history.
func (c *Core) Mark() Mark { return Mark{c.recorded, c.deferrals, c.frees} }

// QuietSince reports whether no block has become free and no use has been recorded since the mark.
// If so, a caller that has waited for the work queued before the mark need not wait again.
func (c *Core) QuietSince(m Mark) bool { return m.frees == c.frees && m.uses == c.recorded }

// Synced records that the host has waited for all work that a stream had queued before the mark. It
// has the same effect as Idle, and it also frees the deferred blocks that no stream uses any more
// (see Returned), ordered by the number of the stream that owns them and then by deferral. Synced
// takes time proportional to the number of deferred blocks.
func (c *Core) Synced(on Stream, before Mark) {
	c.mergeHot()
	c.reports.clear()
	n, known := c.records[on]
	if !known {
		return
	}
	c.streams[n].synced = max(c.streams[n].synced, before.uses)
	c.Idle(on, before)
	for _, s := range c.deferringStreams() {
		for id := c.streams[s].first; id != 0; {
			after := c.sides[id].after
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
		c.clean(n)
	}
}
