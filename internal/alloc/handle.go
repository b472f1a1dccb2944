package alloc

import (
	"errors"
	"fmt"
)

// Live returns the live block of a handle. Errors: ErrFreed, ErrForeign.
func (c *Core) Live(h Handle) (Block, error) {
	id, err := c.resolveHandle(h)
	if err == nil && c.blocks[id].state() != Live {
		err = ErrFreed
	}
	if err != nil {
		return Block{}, err
	}
	return c.view(id), nil
}

// FreeHandle is Free for a caller that keeps nothing but the handle; it returns the block, too.
// Errors: ErrDoubleFree, ErrForeign. Nothing changed then.
func (c *Core) FreeHandle(h Handle) (Block, State, error) {
	id := int32(uint32(h))
	if uint64(uint32(h)) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		// Nearly all blocks are plain: no graph and no other stream has to do with them.
		if b.rest&(stateMask|sided) == uint64(Live) && b.generation == uint32(h>>32) {
			undone := id == c.last
			if c.hot != 0 || c.reports.filled {
				c.settleFree()
			}
			c.keep(b, id, undone)
			v := c.known(b, id)
			v.Handle = h
			return v, Free, nil
		}
		if b.state() == Live && b.generation == uint32(h>>32) {
			return c.known(b, id), c.free(b, id), nil
		}
	}
	return Block{}, vacant, c.refuseHandle(h)
}

// refuseHandle says why a handle cannot be freed.
func (c *Core) refuseHandle(h Handle) error {
	_, err := c.resolveHandle(h)
	if err == nil || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	return fmt.Errorf("freeing a block by its handle: %w", err)
}
