package alloc

// roundUp rounds n up to a multiple of step, a power of two.
func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }

// smallIndexBit returns 1 for a size that is served from small segments, and otherwise 0. A
// stream's small index follows its large one.
func (c *Config) smallIndexBit(rounded int64) uint32 {
	if c.Sizing == Stepped && rounded <= smallLimit {
		return 1
	}
	return 0
}

func (c *Config) shouldSplit(rounded, remainder int64) bool {
	if c.Sizing == Geometric || c.smallIndexBit(rounded) == 1 {
		return remainder >= Unit
	}
	return remainder > smallLimit
}

// segmentSize returns the size of the next segment, given the number of mapped bytes.
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
