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
		c.cool()
	}
}

// cool merges the block that was kept apart.
func (c *Core) cool() {
	id := c.hot
	c.hot = 0
	c.merge(&c.blocks[id], id)
}

// keep frees a block that nothing holds and keeps it apart; undone says that the latest call
// was its Alloc.
func (c *Core) keep(b *block, id int32, undone bool) {
	c.counts.live--
	c.expire(b)
	c.hot, c.last, c.undone = id, 0, undone
}

// again returns the block that was kept apart if a request would get it, and settles it if not.
func (c *Core) again(rounded int64, home int32) (*block, int32) {
	id := c.hot
	b := &c.blocks[id]
	if c.undone && c.asked == rounded && c.askedOf == home ||
		!c.undone && b.size() == rounded && c.alone(b, home) {
		c.last, c.hot = id, 0
		c.asked, c.askedOf = rounded, home
		return b, id
	}
	c.cool()
	return nil, 0
}

// alone tells whether an expired block belongs to an index and would be the only one of its class,
// merged with none.
func (c *Core) alone(b *block, home int32) bool {
	last := b.units() - 1
	return last < exactBins && c.homeOf(b) == home && c.homes[home].heads[last] == 0 &&
		c.blocks[b.prev()].state() != Free && c.blocks[b.next].state() != Free
}
