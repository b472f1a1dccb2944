package alloc

import (
	"errors"
	"fmt"
)

// Free gives a block back and says where it stands now: Free if it can be taken again at once,
// Parked if a graph holds it, Deferred if other streams may still use it. For a deferred block
// Marks names the streams on which the caller records events under the block's ticket.
//
// Errors: ErrDoubleFree, ErrForeign. Nothing changed then.
func (c *Core) Free(v Block) (State, error) {
	if !c.owns(v) {
		return vacant, c.refuse(v)
	}
	return c.free(int32(uint32(v.Handle))), nil
}

// free gives a live block back.
func (c *Core) free(id int32) State {
	if c.reports.filled {
		c.reports.clear()
	}
	b := &c.blocks[id]
	if b.pins == 0 && b.uses == 0 {
		c.counts.live--
		c.expire(b)
		if id == c.last {
			c.hot, c.last = id, 0
			return Free
		}
		c.settle()
		c.merge(b, id)
		return Free
	}
	c.settle()
	c.counts.live--
	if b.pins > 0 {
		b.state = Parked
		c.counts.parked += b.size
		return Parked
	}
	return c.release(id)
}

// owns reports whether a block is live.
func (c *Core) owns(v Block) bool {
	id := uint32(v.Handle)
	if uint64(id) >= uint64(len(c.blocks)) {
		return false
	}
	b := &c.blocks[id]
	return b.state == Live && b.generation == uint32(v.Handle>>32) &&
		b.size == v.Size && b.segment == v.Segment
}

// refuse says why a block that is not live cannot be freed.
func (c *Core) refuse(v Block) error {
	_, err := c.live(v)
	if errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	return fmt.Errorf("freeing block at segment %d offset %d: %w", v.Segment, v.Offset, err)
}

// release returns a block that nothing pins, at once or after its uses.
func (c *Core) release(id int32) State {
	c.forgetSynced(id)
	if c.blocks[id].uses != 0 {
		c.postpone(id)
		return Deferred
	}
	c.giveBack(&c.blocks[id], id)
	return Free
}

// giveBack makes a block free and merges it with free neighbours.
func (c *Core) giveBack(b *block, id int32) {
	c.expire(b)
	c.merge(b, id)
}

// expire ends the lifetime of a block, which is in no index yet.
func (c *Core) expire(b *block) {
	c.counts.used -= b.size
	c.counts.requested -= b.requested
	b.generation++
	b.state = vacant
}

// merge puts an expired block among the free ones, joined with free neighbours. The record of a
// free neighbour survives, so that its place in the index moves as little as possible.
func (c *Core) merge(b *block, id int32) {
	b.state = Free
	p, n := &c.blocks[b.prev], &c.blocks[b.next]
	switch {
	case p.state == Free:
		prev := b.prev
		c.absorb(p, b, prev, id)
		if n.state == Free {
			c.remove(n)
			c.absorb(p, n, prev, p.next)
		}
		c.refile(p, prev)
	case n.state == Free:
		next := b.next
		c.lower(n, b, next, id)
		c.refile(n, next)
	default:
		c.insert(b, id)
	}
}

// absorb lengthens block b by the one after it. Record 0 stands for no neighbour and takes
// what is written to it.
func (c *Core) absorb(b, after *block, id, afterID int32) {
	b.size += after.size
	b.next = after.next
	c.blocks[after.next].prev = id
	c.drop(after, afterID)
}

// lower lengthens block b by the one before it.
func (c *Core) lower(b, before *block, id, beforeID int32) {
	b.size += before.size
	b.at = before.at
	b.prev = before.prev
	c.blocks[before.prev].next = id
	if before.prev == 0 {
		c.segments[b.segment].first = id
	}
	c.drop(before, beforeID)
}
