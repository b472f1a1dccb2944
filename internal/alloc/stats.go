package alloc

import (
	"iter"
	"math/bits"
)

// counts are kept up to date by every call; bytes unless said otherwise.
type counts struct {
	live       int // blocks in the hands of callers
	segments   int // segments that are mapped
	used       int64
	requested  int64
	peak       int64 // highest used
	peakMapped int64 // highest mapped
	parked     int64
	deferred   int64
	pinned     int64
}

// Stats describes a Core at one moment. Sizes are bytes.
type Stats struct {
	Segments    int   // segments mapped
	Live        int   // blocks in the hands of callers
	Mapped      int64 // bytes of the segments
	MappedPeak  int64 // highest Mapped so far
	Used        int64 // bytes of blocks that are not free: live, parked and deferred
	UsedPeak    int64 // highest Used so far
	Requested   int64 // what callers asked for in Used
	Cached      int64 // bytes of free blocks: Mapped - Used
	LargestFree int64 // largest free block of any stream
	Deferred    int64 // bytes of deferred blocks
	Parked      int64 // bytes of parked blocks
	Pinned      int64 // bytes of blocks with pins, live or parked
}

// Stats returns the counters. Its time grows with the number of streams.
func (c *Core) Stats() Stats {
	c.settle()
	n := &c.counts
	s := Stats{
		Segments: n.segments, Live: n.live,
		Mapped: c.mapped, MappedPeak: n.peakMapped,
		Used: n.used, UsedPeak: n.peak, Requested: n.requested, Cached: c.mapped - n.used,
		Deferred: n.deferred, Parked: n.parked, Pinned: n.pinned,
	}
	for _, x := range c.homes {
		if x != nil {
			s.LargestFree = max(s.LargestFree, c.largest(x))
		}
	}
	return s
}

// Fragmentation is the share of the cached bytes outside the largest free block, from 0 to 1:
// how much of the cache the largest request could not have.
func (s Stats) Fragmentation() float64 {
	if s.Cached == 0 {
		return 0
	}
	return 1 - float64(s.LargestFree)/float64(s.Cached)
}

// freeBytes sums the free blocks of an index. Its time grows with their number.
func (c *Core) freeBytes(x *index) int64 {
	var units int64
	for size, g := range c.eachClass(x) {
		units += int64(size) * int64(g.count)
	}
	return units << unitShift
}

// eachClass yields the classes of an index that hold blocks, as their sizes in units and their
// bags, by size.
func (c *Core) eachClass(x *index) iter.Seq2[uint64, *bag] {
	return func(yield func(uint64, *bag) bool) {
		for w := range x.words {
			for mask := x.words[w]; mask != 0; mask &= mask - 1 {
				if !c.eachOfBin(x, w<<6+bits.TrailingZeros64(mask), yield) {
					return
				}
			}
		}
	}
}

func (c *Core) eachOfBin(x *index, bin int, yield func(uint64, *bag) bool) bool {
	if bin < exactBins {
		return yield(uint64(bin)+1, &x.bags[bin])
	}
	for k := *x.list(bin); k != 0; k = c.classes[k].next {
		if !yield(c.classes[k].units, &c.classes[k].blocks) {
			return false
		}
	}
	return true
}
