package alloc

// A Free that undoes the Alloc right before it restores the very state in which that Alloc was
// decided, so the same request would be placed in the same block again. And a request for the size
// of the block freed right before it gets that block if it merges with no neighbour and no other
// block of that size is free. Programs do both all the time: a temporary is made, used and dropped;
// an old value is dropped for a new one. So a freed block stays apart for one call, unmerged and in
// no index: if the next call is an Alloc that would get it, it does, and any other call first
// settles it. Placement is what it would be without. Whether its neighbours are free is looked up
// at the Free and not when it merges: their records have to come from far, and a wrong guess of the
// processor costs least where what was guessed is at hand.

// settle merges the block that was kept apart, if there is one.
func (c *Core) settle() {
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

// neighbours tells which neighbours of a block in its segment are free.
type neighbours struct{ prev, next bool }

func (c *Core) freeNeighbours(b *block) neighbours {
	return neighbours{c.blocks[b.prev()].state() == Free, c.blocks[b.next].state() == Free}
}

// keep frees a block that nothing holds and keeps it apart; home is its index. The caller has noted
// its neighbours, after it settled what was kept apart before.
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
