package alloc

import (
	"errors"
	"fmt"
)

// beforeFree merges the block that was kept apart and forgets reports, as any Free does.
func (c *Core) beforeFree() {
	if c.reports.filled {
		c.reports.clear()
	}
	if c.hot != 0 {
		c.cool(c.homes[c.hotOf])
	}
}

// freeHeld is free for a block that a graph or another stream may hold.
func (c *Core) freeHeld(b *block, id uint32) State {
	if c.sides[id].pins > 0 || c.sides[id].kept {
		b.setState(Parked)
		c.counts.parked += b.size()
		return Parked
	}
	return c.release(id)
}

// release returns a block that nothing pins, at once or after its uses.
func (c *Core) release(id uint32) State {
	c.forgetSynced(id)
	if c.sides[id].uses != 0 {
		c.postpone(id)
		return Deferred
	}
	c.giveBack(&c.blocks[id], id)
	return Free
}

// giveBack makes a block free and merges it with free neighbours.
func (c *Core) giveBack(b *block, id uint32) {
	c.expire(b)
	c.merge(c.homes[c.homeOf(b)], b, id, c.freeNeighbours(b))
}

// expire ends the lifetime of a block, which is in no index yet.
func (c *Core) expire(b *block) {
	c.counts.used -= b.size()
	c.counts.requested -= b.requested()
	c.ended++
	b.generation++
	b.rest = uint64(vacant)
}

// merge puts an expired block among the free ones of its index, joined with free neighbours, and
// returns how many units that makes.
func (l *layout) merge(x *index, b *block, id uint32, free neighbours) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	if (p.span|n.span)>>idBits > exactBins { // Either has more, or, seldom, both together do.
		return l.mergeLarge(x, b, id, free)
	}
	if free.next {
		more := n.units()
		l.remove(x, n, more)
		units += more
		after := n.next
		l.drop(n, next)
		b.next = after
		l.blocks[after].setPrev(id)
	}
	if free.prev {
		more := p.units()
		l.remove(x, p, more)
		units += more
		after := b.next
		p.next = after
		l.blocks[after].setPrev(prev)
		l.drop(b, id)
		b, id = p, prev
	}
	b.span = units<<idBits | b.span&idMask
	l.insert(x, b, id, units)
	return units
}

// mergeLarge is merge for any neighbours. The record of a free one survives, so that its place in
// the index moves as little as possible.
func (l *layout) mergeLarge(x *index, b *block, id uint32, free neighbours) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	switch {
	case free.prev:
		units += p.units()
		after := next
		if free.next {
			more := n.units()
			l.remove(x, n, more)
			units += more
			after = n.next
			l.drop(n, next)
		}
		p.next = after
		l.blocks[after].setPrev(prev)
		l.drop(b, id)
		l.refile(x, p, prev, p.place, units)
	case free.next:
		units += n.units()
		l.follow(n, prev, next)
		l.drop(b, id)
		l.refile(x, n, next, b.place, units)
	default:
		l.insert(x, b, id, units)
	}
	return units
}

// follow makes a block the one after prev, which may be the ring of the region.
func (l *layout) follow(b *block, prev, id uint32) {
	b.setPrev(prev)
	l.blocks[prev].next = id
}

// Live returns the live block of a handle. Errors: ErrFreed, ErrForeign.
func (c *Core) Live(h Handle) (Block, error) {
	id, err := c.live(h)
	if err != nil {
		return Block{}, err
	}
	return c.view(id), nil
}

// FreeHandle gives a block back, and returns it with where it stands now: Free if it can be taken
// again at once, Parked if a graph holds it, Deferred if other streams may still use it. For a
// deferred block EventsToRecord names the streams on which the caller records events.
//
// Errors: ErrDoubleFree, ErrForeign. Nothing changed then.
func (c *Core) FreeHandle(h Handle) (Block, State, error) {
	id := uint32(h)
	if uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.generation == uint32(h>>32) && b.state() == Live {
			r := c.regionOf(b)
			v := r.view(b, id)
			c.owner = r.owner
			// Nearly all blocks are plain: no graph and no other stream has to do with them.
			if b.rest&sided != 0 {
				c.beforeFree()
				c.last = 0
				c.counts.live--
				return v, c.freeHeld(b, id), nil
			}
			if c.hot != 0 || c.reports.filled {
				c.beforeFree()
			}
			c.neighbours = c.freeNeighbours(b)
			c.keep(b, id, r.home)
			return v, Free, nil
		}
	}
	return Block{}, vacant, c.refuseHandle(h)
}

// refuseHandle says why a handle cannot be freed.
func (c *Core) refuseHandle(h Handle) error {
	_, err := c.resolve(h)
	if err == nil || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	return fmt.Errorf("freeing a block by its handle: %w", err)
}

// A Free that undoes the Alloc right before it restores the very state in which that Alloc was
// decided, so the same request would be placed in the same block again. And a request for the size
// of the block freed right before it gets that block if it merges with no neighbour and no other
// block of that size is free. Programs do both all the time: a temporary is made, used and dropped;
// an old value is dropped for a new one. So a freed block stays apart for one call, unmerged and in
// no index: if the next call is an Alloc that would get it, it does, and any other call first
// merges it. Placement is what it would be without. Whether its neighbours are free is looked up
// at the Free and not when it merges: their records have to come from far, and a wrong guess of the
// processor costs least where what was guessed is at hand.

// mergeHot merges the block that was kept apart, if there is one.
func (c *Core) mergeHot() {
	c.last = 0
	if c.hot != 0 {
		c.cool(c.homes[c.hotOf])
	}
}

// cool merges the block that was kept apart with those of its index, and returns how many units
// that makes.
func (c *Core) cool(x *index) uint64 {
	id := c.hot
	c.hot = 0
	return c.merge(x, &c.blocks[id], id, c.neighbours)
}

// neighbours says which neighbours of a block in its region are free.
type neighbours struct{ prev, next bool }

func (c *Core) freeNeighbours(b *block) neighbours {
	return neighbours{c.blocks[b.prev()].state() == Free, c.blocks[b.next].state() == Free}
}

// keep frees a block that nothing holds and keeps it apart; home is its index. The caller has noted
// its neighbours, after it merged what was kept apart before.
func (c *Core) keep(b *block, id, home uint32) {
	c.counts.live--
	c.expire(b)
	c.undone = id == c.last
	c.hot, c.hotOf, c.last = id, home, 0
}

// again reports whether a request would get the block that was kept apart.
func (c *Core) again(units uint64, home uint32) bool {
	if c.undone {
		return c.asked == units && c.askedOf == home
	}
	return c.blocks[c.hot].units() == units && c.alone(home, units)
}

// alone reports whether the block that was kept apart, of so many units, belongs to an index and
// would be the only one of its class, merged with none.
func (c *Core) alone(home uint32, units uint64) bool {
	return units <= exactBins && c.hotOf == home && c.homes[home].bags[units-1].count == 0 &&
		c.neighbours == neighbours{}
}
