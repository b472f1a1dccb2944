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
	id := uint32(h)
	if uint64(id) < uint64(len(c.blocks)) {
		b := &c.blocks[id]
		if b.generation == uint32(h>>32) && b.state() == Live {
			s := c.segmentOf(b)
			v := s.view(b, id)
			// Nearly all blocks are plain: no graph and no other stream has to do with them.
			if b.rest&sided != 0 {
				return v, c.free(b, id), nil
			}
			if c.hot != 0 || c.reports.filled {
				c.settleFree()
			}
			c.neighbours = c.freeNeighbours(b)
			c.keep(b, id, s.home)
			return v, Free, nil
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
