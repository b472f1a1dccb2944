package alloc

func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }

// smallIndexBit returns 1 for a size that small segments serve. A stream's small index follows its
// large one.
func (c *Config) smallIndexBit(roundedBytes int64) uint32 {
	if c.Sizing == Stepped && roundedBytes <= smallLimit {
		return 1
	}

	return 0
}

func isSmallIndex(indexID uint32) bool { return indexID&1 != 0 }

func (c *Config) shouldSplit(roundedBytes, remainder int64) bool {
	if c.Sizing == Geometric || c.smallIndexBit(roundedBytes) == 1 {
		return remainder >= Unit
	}

	return remainder > smallLimit
}

func (c *Config) segmentSize(roundedBytes, mappedBytes int64) int64 {
	if c.Sizing == Stepped {
		switch {
		case roundedBytes <= smallLimit:
			return smallSegment
		case roundedBytes < largeLimit:
			return largeSegment
		}

		return roundUp(roundedBytes, largeStep)
	}

	preferred := roundUp(max(mappedBytes, c.First), c.Granularity)
	return max(roundUp(roundedBytes, c.Granularity), min(preferred, MaxSize))
}
