package alloc

// Live returns the live block of a handle, for callers that keep nothing but handles. Errors:
// ErrFreed for one that was freed, ErrForeign for one that was never handed out.
func (c *Core) Live(h Handle) (Block, error) {
	id, generation := uint32(h), uint32(h>>32)
	if id == 0 || uint64(id) >= uint64(len(c.blocks)) {
		return Block{}, ErrForeign
	}
	switch b := &c.blocks[id]; {
	case b.generation == generation && b.state == Live:
		return c.view(int32(id)), nil
	case b.generation == generation && b.state > Live || int32(generation-b.generation) < 0:
		return Block{}, ErrFreed
	}
	return Block{}, ErrForeign
}

// FreeHandle is Free for a caller that keeps nothing but the handle; it returns the block, too.
func (c *Core) FreeHandle(h Handle) (Block, State, error) {
	v, err := c.Live(h)
	if err != nil {
		return v, vacant, c.refuse(Block{Handle: h})
	}
	state, err := c.Free(v)
	return v, state, err
}
