package alloc

// roundUp returns the least multiple of step, a power of two, that is at least n.
func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }

// smallBit is 1 if a rounded size is served by the small segments of a stream, and 0 if not.
func (c *Config) smallBit(rounded int64) uint32 {
	if c.Sizing == Stepped && rounded <= smallLimit {
		return 1
	}
	return 0
}

// splits reports whether what remains of a free block becomes a block of its own.
func (c *Config) splits(rounded, remainder int64) bool {
	if c.Sizing == Geometric || c.smallBit(rounded) == 1 {
		return remainder >= Unit
	}
	return remainder > smallLimit
}

// segmentSize returns the bytes of the next segment, which shall hold rounded bytes, before
// the capacity is looked at, with the number of bytes that are mapped.
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
	ahead := roundUp(max(mapped, c.First), c.Granularity)
	return max(roundUp(rounded, c.Granularity), min(ahead, MaxSize))
}
