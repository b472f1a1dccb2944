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
	if id := uint32(h); uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.state() == Live && b.generation == uint32(h>>32) {
			v := c.known(b, int32(id))
			if int32(id) == c.last {
				c.keep(b, int32(id), true)
				return v, Free, nil
			}
			return v, c.free(b, int32(id)), nil
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
