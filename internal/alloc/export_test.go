package alloc

import "iter"

func (c *Core) Free(v Block) (State, error) {
	_, state, err := c.FreeHandle(v.Handle)
	return state, err
}

// Segments yields the segments that have not been trimmed, by ordinal.
func (c *Core) Segments() iter.Seq[Segment] {
	c.mergeLastFreed()
	return func(yield func(Segment) bool) {
		for i := range c.segments {
			if c.segments[i].bytes > 0 && !yield(c.segmentView(int32(i))) {
				return
			}
		}
	}
}

// Default returns the Config that New uses for a zero Config.
func Default() Config {
	var c Config
	c.ensureDefaults()
	return c
}

// PyTorch returns a Config with the policy and sizing of PyTorch's caching allocator up to 2.11.
func PyTorch() Config {
	c := Default()
	c.Policy, c.Sizing = AddressOrder, Stepped
	return c
}
