package alloc

// roundUp returns the smallest multiple of step, a power of two, that is at least n.
func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }

// smallBit returns 1 if requests of a rounded size are served from small segments, and 0 if not. A
// stream's small index follows its large one, so callers add the bit to the number of the large
// index.
func (c *Config) smallBit(rounded int64) uint32 {
	if c.Sizing == Stepped && rounded <= smallLimit {
		return 1
	}
	return 0
}

func (c *Config) splits(rounded, remainder int64) bool {
	if c.Sizing == Geometric || c.smallBit(rounded) == 1 {
		return remainder >= Unit
	}
	return remainder > smallLimit
}

// segmentSize returns the size of the next segment for a rounded request, given the number of
// mapped bytes. It ignores Capacity.
func (c *Config) segmentSize(rounded, mapped int64) int64 {
	if c.Sizing == Stepped {
		switch {
		case rounded <= smallLimit:
			return smallSegment
		case rounded < largeLimit:
			return largeSegment
		}
		return roundUp(rounded, largeStep)
	}
	preferred := roundUp(max(mapped, c.First), c.Granularity)
	return max(roundUp(rounded, c.Granularity), min(preferred, MaxSize))
}
