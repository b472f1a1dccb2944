package alloc

import "fmt"

// Pin makes a block outlive its Free until as many Unpins followed: a captured graph refers to
// its addresses. Errors: ErrFreed, ErrForeign.
func (c *Core) Pin(v Block) error {
	c.settle()
	c.reports.clear()
	id, err := c.live(v)
	if err != nil {
		return fmt.Errorf("pinning block at segment %d offset %d: %w", v.Segment, v.Offset, err)
	}
	if c.sides[id].pins == 0 {
		c.counts.pinned += c.blocks[id].size()
	}
	c.sides[id].pins++
	c.blocks[id].rest |= sided
	return nil
}

// Unpin takes one Pin back and says where the block stands now: Live or Parked as before, or,
// after the last pin of a parked block, Free (see Returned) or Deferred (see Marks).
//
// Errors: ErrNotPinned, ErrFreed, ErrForeign.
func (c *Core) Unpin(v Block) (State, error) {
	c.settle()
	c.reports.clear()
	id, err := c.resolve(v)
	if err == nil && c.sides[id].pins == 0 {
		err = ErrNotPinned
	}
	if err != nil {
		return vacant, fmt.Errorf("unpinning block at segment %d offset %d: %w",
			v.Segment, v.Offset, err)
	}
	b, h := &c.blocks[id], &c.sides[id]
	if h.pins--; h.pins > 0 {
		return b.state(), nil
	}
	c.counts.pinned -= b.size()
	if b.state() == Live {
		return Live, nil
	}
	c.counts.parked -= b.size()
	returned := Return{Block: c.view(id)}
	state := c.release(id)
	if state == Free {
		c.reports.filled = true
		c.reports.returned = append(c.reports.returned, returned)
	}
	return state, nil
}
