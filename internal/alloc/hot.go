package alloc

// A Free that undoes the Alloc right before it restores the very state in which that Alloc was
// decided, so the same request would be placed in the same block again. Programs do this all the
// time: a temporary is made, used and dropped. Such a block therefore stays apart for one call,
// unmerged and in no index: if the next call is an Alloc of the same size and stream it gets the
// block back, and any other call first settles it. Placement is what it would be without.

// settle merges the block that was kept apart, if there is one.
func (c *Core) settle() {
	c.last = 0
	if c.hot != 0 {
		c.merge(c.cool())
	}
}

// cool ends the time of the block that was kept apart.
func (c *Core) cool() (*block, int32) {
	id := c.hot
	c.hot = 0
	return &c.blocks[id], id
}

// again returns the block that was kept apart to a request like the one that it was freed from.
func (c *Core) again(size, rounded int64, home int32) (Block, bool) {
	if c.asked != rounded || c.askedOf != home {
		c.settle()
		return Block{}, false
	}
	id := c.hot
	c.hot, c.last = 0, id
	return c.issue(&c.blocks[id], id, size), true
}
