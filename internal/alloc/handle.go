package alloc

import (
	"errors"
	"fmt"
)

// Live returns the live block of a handle. Errors: ErrFreed, ErrForeign.
func (c *Core) Live(h Handle) (Block, error) {
	id, err := c.resolveHandle(h)
	if err == nil && c.blocks[id].state != Live {
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
	id, err := c.resolveHandle(h)
	if err == nil && c.blocks[id].state != Live || errors.Is(err, ErrFreed) {
		err = ErrDoubleFree
	}
	if err != nil {
		return Block{}, vacant, fmt.Errorf("freeing a block by its handle: %w", err)
	}
	v := c.view(id)
	return v, c.free(id), nil
}
