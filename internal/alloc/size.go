package alloc

import "math/bits"

// roundUp returns the least multiple of step, a power of two, that is at least n.
func roundUp(n, step int64) int64 { return (n + step - 1) &^ (step - 1) }

// round returns the block size that serves a request of n bytes.
func (c *Config) round(n int64) int64 {
	if d := c.Divisions; d > 1 && n > Unit*d {
		n = roundDivision(n, d)
	}
	return roundUp(n, Unit)
}

// roundDivision rounds n up to one of d equal steps between the powers of two around it.
func roundDivision(n, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(n)) - 1)
	if n == floor {
		return n
	}
	return roundUp(n, floor/d)
}

// smallBit is 1 if a rounded size is served by the small segments of a stream, and 0 if not.
func (c *Config) smallBit(rounded int64) uint32 {
	if c.Sizing == Stepped && rounded <= smallLimit {
		return 1
	}
	return 0
}

// suits reports whether a free block may serve a request; MaxSplit keeps large blocks from
// small requests and large requests from much larger blocks.
func (c *Config) suits(block, rounded int64) bool {
	limit := c.MaxSplit
	if c.Sizing != Stepped || limit == 0 {
		return true
	}
	if rounded < limit {
		return block < limit
	}
	return block < rounded+c.MaxNonSplitRounding
}

// splits reports whether what remains of a free block becomes a block of its own.
func (c *Config) splits(rounded, remainder int64) bool {
	if remainder < Unit || c.NoSplit {
		return false
	}
	if c.Sizing == Geometric || c.smallBit(rounded) == 1 {
		return true
	}
	if limit := c.MaxSplit; limit > 0 && rounded >= limit {
		return false
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
	need := roundUp(rounded, c.Granularity)
	if c.NoSplit {
		return need
	}
	ahead := max(mapped/100*c.GrowPercent, c.First)
	return max(need, min(roundUp(ahead, c.Granularity), MaxSize))
}
