package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// StreamPoint is a point on a stream: where the caller records the event of a deferred block, or
// what the owner stream must wait for.
type StreamPoint struct {
	// Deferral numbers the deferred blocks of a Core from 1 in the order in which they were freed.
	Deferral uint64
	Stream   Stream
}

// stream is the record of a stream.
type stream struct {
	name   Stream
	number uint32 // see Number
	synced uint64 // uses up to this Use call are over; see Mark
	first  uint32 // its deferred blocks, oldest first, linked by their side records
	last   uint32
}

// use records that a block was used on a stream other than its own.
type use struct {
	call   uint64 // Use call; the number of the deferral once the block is deferred
	stream uint32
	next   uint32 // next use of the block, or next spare record
}

// reports are what the latest call tells beyond its result. The slices are reused.
type reports struct {
	filled   bool
	toRecord []StreamPoint
	waits    []StreamPoint
	returned []Return
	trimmed  []Segment
}

// Return is a block that became free after its Free: it was deferred or parked.
type Return struct {
	Block
	Owner uint32 // number of the stream that owned it
}

func (r *reports) clear() {
	r.filled = false
	r.toRecord, r.waits = r.toRecord[:0], r.waits[:0]
	r.returned, r.trimmed = r.returned[:0], r.trimmed[:0]
}

// Reported reports whether the latest call left anything in EventsToRecord, Waits or Returned.
func (c *Core) Reported() bool { return c.reports.filled }

// EventsToRecord lists the events to record after the latest Free or Unpin deferred a block. It is
// valid until the next call that changes the Core.
func (c *Core) EventsToRecord() []StreamPoint { return c.reports.toRecord }

// Waits lists the events that the stream of the latest Alloc must wait for, on the device,
// before any block placed by this or a later Alloc is used. Valid until the next change.
func (c *Core) Waits() []StreamPoint { return c.reports.waits }

// Returned lists the blocks that came back, later than their Free, during the latest Alloc, Synced
// or Unpin, in the order in which they did. Valid until the next change.
func (c *Core) Returned() []Return { return c.reports.returned }

// Number is the number of a stream as histories have it: 0 for stream 0, and for the others their
// place, from 1, in the order in which they first asked for memory, by Alloc or Reserve. So it
// depends on the history of requests alone, whatever a stream is called. A stream that has not
// asked has 0. Numbers are not given again: a Core keeps some hundred bytes for each.
func (c *Core) Number(name Stream) uint32 {
	n, known := c.numbers[name]
	if !known {
		return 0
	}
	return c.streams[n].number
}

// Owner is the Number of the stream that the block of the latest Alloc, FreeHandle, Pin or Unpin
// serves.
func (c *Core) Owner() uint32 { return c.owner }

// record returns the index of the record of a stream, which it makes if need be.
func (c *Core) record(name Stream) uint32 {
	n, known := c.numbers[name]
	if !known {
		n = uint32(len(c.streams))
		c.numbers[name] = n
		c.streams = append(c.streams, stream{name: name})
		c.homes = append(c.homes, nil, nil)
	}
	return n
}

func (c *Core) streamOf(home uint32) Stream { return c.streams[home/2].name }

// Use records that a block is used on a stream from now on until Free. Uses on the block's own
// stream need no record and are ignored.
//
// Errors: ErrFreed, ErrForeign.
func (c *Core) Use(h Handle, on Stream) error {
	c.mergeHot()
	c.reports.clear()
	id, err := c.live(h)
	if err != nil {
		return fmt.Errorf("using a block: %w", err)
	}
	side, n := &c.sides[id], c.record(on)
	if n == c.homeOf(&c.blocks[id])/2 {
		return nil
	}
	if c.useAgain(id, n) {
		return nil
	}
	c.marked++
	u := c.grabUse()
	c.uses[u] = use{call: c.marked, stream: n, next: side.uses}
	side.uses = u
	c.blocks[id].rest |= sided
	return nil
}

// UseAgain notes anew that a block is used on a stream, where Use has noted it and the block is
// live still: else it does nothing. A Mark in between does not cover the use any more.
func (c *Core) UseAgain(h Handle, on Stream) {
	id, err := c.live(h)
	n, known := c.numbers[on]
	if err == nil && known {
		c.useAgain(id, n)
	}
}

// useAgain reports whether the use was noted before.
func (c *Core) useAgain(id, stream uint32) bool {
	for u := c.sides[id].uses; u != 0; u = c.uses[u].next {
		if c.uses[u].stream == stream {
			c.marked++
			c.uses[u].call = c.marked
			return true
		}
	}
	return false
}

// Mark is a place in the calls of a Core.
type Mark struct{ uses, deferrals, ended uint64 }

// QuietSince reports whether no block has become free, and no stream was noted to use one, since a
// place: then whatever waited for the streams' work from before it has waited for all of it.
func (c *Core) QuietSince(m Mark) bool { return m.ended == c.ended && m.uses == c.marked }

// Mark is the place behind all calls so far.
func (c *Core) Mark() Mark { return Mark{c.marked, c.deferrals, c.ended} }

// Covers reports whether the event of a deferred block comes before the place.
func (m Mark) Covers(p StreamPoint) bool { return p.Deferral <= m.deferrals }

// Synced records that the program waited on the host for all work on a stream that it had before a
// place, and does what Idle does. Deferred blocks whose uses are all over come back; see Returned.
// The order is by the number of the owner stream, then by deferral. Time grows with the deferred
// blocks.
func (c *Core) Synced(on Stream, before Mark) {
	c.mergeHot()
	c.reports.clear()
	n, known := c.numbers[on]
	if !known {
		return
	}
	c.streams[n].synced = max(c.streams[n].synced, before.uses)
	c.Idle(on, before)
	for _, s := range c.deferring() {
		for id := c.streams[s].first; id != 0; {
			after := c.sides[id].after
			if c.endUse(id, n, before.deferrals) && c.sides[id].uses == 0 {
				c.unqueue(id)
			}
			id = after
		}
	}
}

// Idle is Synced for the memory of the stream itself: what is free of it is clean now, unless any
// block has become free since the place.
func (c *Core) Idle(on Stream, before Mark) {
	n, known := c.numbers[on]
	if known && before.ended == c.ended {
		c.mergeHot()
		c.clean(n)
	}
}

// deferring lists the streams that own deferred blocks, by number.
func (c *Core) deferring() []uint32 {
	c.owners = c.owners[:0]
	for s := range c.streams {
		if c.streams[s].first != 0 {
			c.owners = append(c.owners, uint32(s))
		}
	}
	slices.SortFunc(c.owners, func(a, b uint32) int {
		return cmp.Compare(c.streams[a].number, c.streams[b].number)
	})
	return c.owners
}

// endUse forgets the use on a stream of a block that was deferred by then, and reports whether
// there was one. If it was the last, the return of the block is reported.
func (c *Core) endUse(id, stream uint32, then uint64) bool {
	for link := &c.sides[id].uses; *link != 0; link = &c.uses[*link].next {
		u := *link
		if c.uses[u].stream != stream || c.uses[u].call > then {
			continue
		}
		*link = c.uses[u].next
		c.dropUse(u)
		if c.sides[id].uses == 0 {
			c.report(id)
		}
		return true
	}
	return false
}

// forgetSynced drops the uses of a block whose streams were synchronised since.
func (c *Core) forgetSynced(id uint32) {
	for link := &c.sides[id].uses; *link != 0; {
		u := *link
		if c.uses[u].call > c.streams[c.uses[u].stream].synced {
			link = &c.uses[u].next
			continue
		}
		*link = c.uses[u].next
		c.dropUse(u)
	}
}

// postpone defers a freed block: it appends it to the queue of its stream.
func (c *Core) postpone(id uint32) {
	c.deferrals++
	c.reports.filled = true
	b, h := &c.blocks[id], &c.sides[id]
	for u := h.uses; u != 0; u = c.uses[u].next {
		c.uses[u].call = c.deferrals
		c.reports.toRecord = append(c.reports.toRecord,
			StreamPoint{c.deferrals, c.streams[c.uses[u].stream].name})
	}
	s := &c.streams[c.homeOf(b)/2]
	b.setState(Deferred)
	h.before, h.after = s.last, 0
	if s.last != 0 {
		c.sides[s.last].after = id
	} else {
		s.first = id
	}
	s.last = id
	c.counts.deferred += b.size()
}

// unqueue takes a deferred block out of its queue and gives it back.
func (c *Core) unqueue(id uint32) {
	b, h := &c.blocks[id], &c.sides[id]
	s := &c.streams[c.homeOf(b)/2]
	if h.before != 0 {
		c.sides[h.before].after = h.after
	} else {
		s.first = h.after
	}
	if h.after != 0 {
		c.sides[h.after].before = h.before
	} else {
		s.last = h.before
	}
	c.counts.deferred -= b.size()
	c.giveBack(b, id)
}

// takeBack returns a deferred block before its uses are known to be over and reports the events
// that its stream must wait for.
func (c *Core) takeBack(id uint32) {
	h := &c.sides[id]
	for h.uses != 0 {
		u := h.uses
		c.reports.waits = append(c.reports.waits,
			StreamPoint{c.uses[u].call, c.streams[c.uses[u].stream].name})
		h.uses = c.uses[u].next
		c.dropUse(u)
	}
	c.report(id)
	c.unqueue(id)
}

// report notes a late return. It must precede giveBack, which may end the record.
func (c *Core) report(id uint32) {
	c.reports.filled = true
	r := c.regionOf(&c.blocks[id])
	c.reports.returned = append(c.reports.returned, Return{c.view(id), r.owner})
}

func (c *Core) grabUse() uint32 {
	if u := c.spareUse; u != 0 {
		c.spareUse = c.uses[u].next
		return u
	}
	c.uses = append(c.uses, use{})
	return uint32(len(c.uses) - 1)
}

func (c *Core) dropUse(u uint32) {
	c.uses[u].next = c.spareUse
	c.spareUse = u
}

// Pin makes a block outlive its Free until as many Unpins followed: a captured graph refers to
// its addresses. It returns the block. Errors: ErrFreed, ErrForeign.
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
	c.blocks[id].rest |= sided
	c.owner = c.regionOf(&c.blocks[id]).owner
	return c.view(id), nil
}

// Unpin takes one Pin back, and returns the block with where it stands now: Live or Parked as
// before, or, after the last pin of a parked block, Free (see Returned) or Deferred (see
// EventsToRecord).
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
