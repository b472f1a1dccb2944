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
	if c.reports.filled {
		c.reports.clear()
	}
	id, err := c.live(v)
	if err != nil {
		return vacant, freeing(v, err)
	}
	b := &c.blocks[id]
	c.counts.live--
	if b.pins == 0 && b.uses == 0 {
		c.giveBack(id)
		return Free, nil
	}
	if b.pins > 0 {
		b.state = Parked
		c.counts.parked += b.size
		return Parked, nil
	}
	return c.release(id), nil
}

// freeing names the block in an error of Free.
func freeing(v Block, err error) error {
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
	c.giveBack(id)
	return Free
}

// giveBack makes a block free and merges it with free neighbours. The record of a free
// neighbour survives, so that its place in the index moves as little as possible.
func (c *Core) giveBack(id int32) {
	b := &c.blocks[id]
	c.counts.used -= b.size
	c.counts.requested -= b.requested
	b.generation++
	prev, next := b.prev, b.next
	before := prev != 0 && c.blocks[prev].state == Free
	after := next != 0 && c.blocks[next].state == Free
	switch {
	case before:
		c.absorb(prev, id)
		if after {
			c.remove(next)
			c.absorb(prev, next)
		}
		c.refile(prev)
	case after:
		c.lower(next, id)
		c.refile(next)
	default:
		b.state = Free
		c.insert(id)
	}
}

// absorb lengthens a block by the one after it.
func (c *Core) absorb(id, after int32) {
	b, a := &c.blocks[id], &c.blocks[after]
	b.size += a.size
	b.next = a.next
	if a.next != 0 {
		c.blocks[a.next].prev = id
	}
	c.drop(after)
}

// lower lengthens a block by the one before it.
func (c *Core) lower(id, before int32) {
	b, a := &c.blocks[id], &c.blocks[before]
	b.size += a.size
	b.at = a.at
	b.prev = a.prev
	if a.prev != 0 {
		c.blocks[a.prev].next = id
	} else {
		c.segments[b.segment].first = id
	}
	c.drop(before)
}
