package alloc

// A Free that undoes the Alloc right before it restores the very state in which that Alloc was
// decided, so the same request would be placed in the same block again. And a request for the size
// of the block freed right before it gets that block if it merges with no neighbour and no other
// block of that size is free. Programs do both all the time: a temporary is made, used and dropped;
// an old value is dropped for a new one. So a freed block stays apart for one call, unmerged and in
// no index: if the next call is an Alloc that would get it, it does, and any other call first
// settles it. Placement is what it would be without.

// settle merges the block that was kept apart, if there is one.
func (c *Core) settle() {
	c.last = 0
	if c.hot != 0 {
		c.cool(c.homes[c.homeOf(&c.blocks[c.hot])])
	}
}

// cool merges the block that was kept apart with those of its index, and returns how many units
// that makes.
func (c *Core) cool(x *index) uint64 {
	id := c.hot
	c.hot = 0
	return c.merge(x, &c.blocks[id], id)
}

// keep frees a block that nothing holds and keeps it apart; undone says that the latest call
// was its Alloc.
func (c *Core) keep(b *block, id int32, undone bool) {
	c.counts.live--
	c.expire(b)
	c.hot, c.last, c.undone = id, 0, undone
}

// again tells whether a request would get the block that was kept apart.
func (c *Core) again(rounded int64, home int32) bool {
	if c.undone {
		return c.asked == rounded && c.askedOf == home
	}
	b := &c.blocks[c.hot]
	return b.size() == rounded && c.alone(b, home)
}

// alone tells whether an expired block belongs to an index and would be the only one of its class,
// merged with none.
func (c *Core) alone(b *block, home int32) bool {
	last := b.units() - 1
	return last < exactBins && c.homeOf(b) == home && c.homes[home].bags[last].count == 0 &&
		c.blocks[b.prev()].state() != Free && c.blocks[b.next].state() != Free
}

// fitBeside is fit while a block is kept apart, which it merges. It searches first and merges
// then, so that neither has to wait for the other, and searches again in the rare case that what
// was merged is part of what was found, or fits as well or better.
func (c *Core) fitBeside(home int32, units uint64) int32 {
	x := c.homes[home]
	of := c.homeOf(&c.blocks[c.hot])
	if x == nil || of != home || c.config.MaxSplit != 0 {
		c.cool(c.homes[of])
		return c.fit(home, int64(units)<<unitShift)
	}
	id := c.find(x, units)
	b := &c.blocks[id]
	found := b.units()
	merged := c.cool(x)
	if merged-units <= found-units || b.units() != found || b.state() != Free {
		return c.find(x, units)
	}
	return id
}
