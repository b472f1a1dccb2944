package alloc

// Trim removes segments that are wholly free, newest first, as long as at least keep bytes stay
// mapped, and returns them in that order for the caller to deregister and unmap. Their ordinals
// are not given out again. The slice is valid until the next call that changes the Core.
func (c *Core) Trim(keep int64) []Segment {
	c.settle()
	c.reports.clear()
	for ordinal := len(c.segments) - 1; ordinal >= 0; ordinal-- {
		s := &c.segments[ordinal]
		if s.bytes == 0 || c.mapped-s.bytes < keep || !c.whollyFree(s) {
			continue
		}
		c.reports.filled = true
		c.reports.trimmed = append(c.reports.trimmed, c.segmentView(int32(ordinal)))
		b := &c.blocks[s.first]
		c.remove(c.homes[s.home], b, b.units())
		c.drop(b, s.first)
		c.mapped -= s.bytes
		c.counts.segments--
		*s = segment{home: s.home}
	}
	return c.reports.trimmed
}

// whollyFree reports whether one free block covers a segment.
func (c *Core) whollyFree(s *segment) bool {
	b := &c.blocks[s.first]
	return b.state() == Free && b.size() == s.bytes
}
