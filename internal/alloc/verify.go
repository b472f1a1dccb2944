package alloc

import "fmt"

// audit collects what Verify counts while it walks a Core.
type audit struct {
	counts counts
	mapped int64
	free   map[uint32]bool // free blocks that no class has named yet
	queued map[uint32]bool // deferred blocks that no queue has named yet
}

// Verify checks every invariant and returns the first that is broken: blocks tile each segment,
// no two free neighbours, every free block filed once and in its class, every deferred block
// queued once, counters equal to what a walk finds. Time grows with the number of blocks.
func (c *Core) Verify() error {
	c.settle()
	a := audit{free: map[uint32]bool{}, queued: map[uint32]bool{}}
	for ordinal := range c.segments {
		if err := c.verifySegment(int32(ordinal), &a); err != nil {
			return fmt.Errorf("segment %d: %w", ordinal, err)
		}
	}
	for n, x := range c.homes {
		if x == nil {
			continue
		}
		if err := c.verifyIndex(uint32(n), x, &a); err != nil {
			return fmt.Errorf("index %d: %w", n, err)
		}
	}
	for n := range c.streams {
		if err := c.verifyQueue(uint32(n), &a); err != nil {
			return fmt.Errorf("queue of stream %d: %w", c.streams[n].name, err)
		}
	}
	return c.verifyCounts(&a)
}

func (c *Core) verifySegment(ordinal int32, a *audit) error {
	s := &c.segments[ordinal]
	if s.bytes == 0 {
		return nil
	}
	a.mapped += s.bytes
	a.counts.segments++
	at, prev := s.base, uint32(0)
	for id := s.first; id != 0; id = c.blocks[id].next {
		b := &c.blocks[id]
		switch {
		case b.position() != at || b.units() == 0:
			return fmt.Errorf("block %d at unit %d, size %d, want it at %d",
				id, b.position(), b.size(), at)
		case int32(b.segment()) != ordinal || b.prev() != prev:
			return fmt.Errorf("block %d has segment %d, previous block %d",
				id, b.segment(), b.prev())
		case b.state() == Free && prev != 0 && c.blocks[prev].state() == Free:
			return fmt.Errorf("free blocks %d and %d are neighbours", prev, id)
		}
		if err := a.note(b, &c.sides[id], id); err != nil {
			return err
		}
		at, prev = at+b.units(), id
	}
	if end := s.base + uint64(s.bytes)>>unitShift; at != end {
		return fmt.Errorf("blocks end at unit %d, the segment at %d", at, end)
	}
	return nil
}

// note counts a block.
func (a *audit) note(b *block, h *side, id uint32) error {
	switch b.state() {
	case Free:
		a.free[id] = true
	case Live:
		a.counts.live++
	case Parked:
		a.counts.parked += b.size()
	case Deferred:
		a.counts.deferred += b.size()
		a.queued[id] = true
	default:
		return fmt.Errorf("block %d is %s", id, b.state())
	}
	if b.state() != Free {
		a.counts.used += b.size()
		a.counts.requested += b.requested()
	}
	if h.pins > 0 {
		a.counts.pinned += b.size()
	}
	mayPin, mayUse := b.state() == Live || b.state() == Parked, b.state() != Free
	if b.rest&sided == 0 && (h.pins != 0 || h.uses != 0) {
		return fmt.Errorf("%s block %d has a side record unmarked: %+v", b.state(), id, *h)
	}
	if h.pins < 0 || h.pins > 0 && !mayPin || h.uses != 0 && !mayUse {
		return fmt.Errorf("%s block %d has %d pins, first use %d", b.state(), id, h.pins, h.uses)
	}
	return nil
}

func (c *Core) verifyIndex(home uint32, x *index, a *audit) error {
	for word := range x.words {
		if x.words[word] != 0 != (x.summary>>word&1 == 1) {
			return fmt.Errorf("word %d is %#x, summary %#x", word, x.words[word], x.summary)
		}
	}
	last := uint64(0)
	for units, g := range c.eachClass(x) {
		if units <= last || g.count == 0 {
			return fmt.Errorf("class of %d units holds %d blocks after %d", units, g.count, last)
		}
		last = units
		if err := c.verifyBag(home, units, g, a); err != nil {
			return fmt.Errorf("class of %d units: %w", units, err)
		}
	}
	for id := range a.free {
		if c.homeOf(&c.blocks[id]) == home {
			return fmt.Errorf("free block %d is in no class", id)
		}
	}
	return nil
}

// verifyBag checks the keys of a class.
func (c *Core) verifyBag(home uint32, units uint64, g *bag, a *audit) error {
	if g.heaped > g.count || g.count > g.room {
		return fmt.Errorf("%d blocks, %d of them a heap, in room for %d", g.count, g.heaped, g.room)
	}
	keys := c.keys[g.start : g.start+g.count]
	for slot, key := range keys {
		id := uint32(key & idMask)
		b := &c.blocks[id]
		switch {
		case !a.free[id] || c.homeOf(b) != home || b.units() != units:
			return fmt.Errorf("block %d does not belong here", id)
		case b.slot() != uint32(slot) || b.key(id) != key:
			return fmt.Errorf("block %d has slot %d, not %d, or key %#x", id, b.slot(), slot, key)
		case slot > 0 && slot < int(g.heaped) && keys[(slot-1)/2] > key:
			return fmt.Errorf("block %d lies before the one above it", id)
		}
		delete(a.free, id)
	}
	for slot := g.count; slot < g.room; slot++ {
		if key := c.keys[g.start+slot]; key != noKey {
			return fmt.Errorf("slot %d holds key %#x of no block", slot, key)
		}
	}
	return nil
}

func (c *Core) verifyQueue(n uint32, a *audit) error {
	prev, ticket := uint32(0), uint64(0)
	for id := c.streams[n].first; id != 0; id = c.sides[id].after {
		b, h := &c.blocks[id], &c.sides[id]
		if !a.queued[id] || h.before != prev || c.homeOf(b)/2 != n || h.uses == 0 {
			return fmt.Errorf("block %d is queued wrongly", id)
		}
		if now := c.uses[h.uses].mark; now <= ticket {
			return fmt.Errorf("ticket %d follows %d", now, ticket)
		}
		delete(a.queued, id)
		prev, ticket = id, c.uses[h.uses].mark
	}
	if c.streams[n].last != prev {
		return fmt.Errorf("queue ends at block %d, not %d", prev, c.streams[n].last)
	}
	return nil
}

func (c *Core) verifyCounts(a *audit) error {
	want := c.counts
	want.peak, want.peakMapped = 0, 0
	switch {
	case len(a.queued) > 0:
		return fmt.Errorf("%d deferred blocks are in no queue", len(a.queued))
	case a.counts != want:
		return fmt.Errorf("counted %+v, kept %+v", a.counts, want)
	case a.mapped != c.mapped || c.config.Capacity > 0 && a.mapped > c.config.Capacity:
		return fmt.Errorf("counted %d bytes mapped, kept %d", a.mapped, c.mapped)
	case c.counts.peak < c.counts.used || c.counts.peakMapped < c.mapped:
		return fmt.Errorf("peaks %d and %d are below %d and %d",
			c.counts.peak, c.counts.peakMapped, c.counts.used, c.mapped)
	}
	return nil
}
