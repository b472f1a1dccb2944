package alloc

// A Free that undoes the Alloc right before it restores the very state in which that Alloc was
// decided, so the same request would be placed in the same block again. Programs do this all the
// time: a temporary is made, used and dropped. Such a block therefore stays apart for one call,
// unmerged and in no index: if the next call is an Alloc of the same size and stream it gets the
// block back, and any other call first settles it. Placement is what it would be without.

// keep frees the block of the latest Alloc, on which nothing was noted since, and keeps it apart.
func (c *Core) keep(b *block) {
	c.counts.live--
	c.expire(b)
	c.hot, c.last = c.last, 0
}

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

// again tells whether a request is like the one that the block that was kept apart was freed from.
// If so the block is its own; if not it is settled.
func (c *Core) again(rounded int64, home int32) (*block, int32) {
	if c.asked != rounded || c.askedOf != home {
		c.cool()
		return nil, 0
	}
	c.last, c.hot = c.hot, 0
	return &c.blocks[c.last], c.last
}
