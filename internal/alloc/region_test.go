package alloc

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// footprint returns the number of bytes that are not clean: the total size of all spans that begin
// below the dirty end of their region.
func (c *Core) footprint() (bytes int64) {
	for _, owned := range c.footprintByOwner() {
		bytes += owned
	}
	return bytes
}

// footprintByOwner returns the footprint of each stream, by its number.
func (c *Core) footprintByOwner() map[uint32]int64 {
	c.mergeLastFreed()
	bytes := map[uint32]int64{}
	for r := range c.regions {
		if region := &c.regions[r]; region.sentinel != 0 {
			base, end := c.regionBounds(uint32(r))
			used := uint64(roundUp(int64(max(region.dirtyEnd, base)-base), int64(spanUnits)))
			bytes[region.owner] += int64(min(used, end-base)) << unitShift
		}
	}
	return bytes
}

// maxSegments returns the maximum number of segments in which a pool may map the given number of
// bytes, if its first segment has first bytes.
func maxSegments(mapped, first int64) int { return bits.Len64(uint64(mapped/first)-1) + 2 }

// TestMappedMemoryIsBoundedByUse allocates one block on each stream.
func TestMappedMemoryIsBoundedByUse(t *testing.T) {
	for _, test := range []struct {
		streams int
		size    func(stream int) int64
	}{
		{1, func(int) int64 { return mib }},
		{10, func(int) int64 { return mib }},
		{100, func(int) int64 { return mib }},
		{1000, func(int) int64 { return mib }},
		{1000, func(s int) int64 { return int64(1+s%40) * mib / 2 }},
		{1000, func(s int) int64 { return int64(1+s*s%97) * mib / 8 }},
	} {
		t.Run(fmt.Sprint(test.streams), func(t *testing.T) {
			c := newCore(t, Default())
			needed := int64(0)
			for s := range test.streams {
				mustAlloc(t, c, test.size(s), Stream(s))
				needed += test.size(s)
			}
			n := c.Stats()
			limit := max(64*mib, 2*needed+int64(test.streams)*2*mib)
			t.Logf("%d MiB on %d streams: %d MiB mapped in %d segments",
				needed/mib, test.streams, n.Mapped/mib, n.Segments)
			if n.Mapped > limit || n.Segments > maxSegments(n.Mapped, 64*mib) {
				t.Errorf("mapped %d bytes in %d segments, want at most %d bytes in %d segments",
					n.Mapped, n.Segments, limit, maxSegments(n.Mapped, 64*mib))
			}
			if err := c.Verify(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSynchronizedStreamsShareMemory uses streams one after another. The work of each stream is
// complete before the next stream allocates blocks.
func TestSynchronizedStreamsShareMemory(t *testing.T) {
	c := newCore(t, Default())
	for s := range Stream(1000) {
		a, b := mustAlloc(t, c, 20*mib, s), mustAlloc(t, c, mib, s)
		for _, v := range []Block{a, b} {
			if _, err := c.Free(v); err != nil {
				t.Fatal(err)
			}
		}
		c.StreamCompleted(s, c.Mark())
	}
	if n := c.Stats(); n.Segments != 1 {
		t.Errorf("1000 successive streams needed %d segments (%d bytes), want 1", n.Segments, n.Mapped)
	}
}

func TestMemoryFreedAfterMarkIsNotClean(t *testing.T) {
	c := newCore(t, Config{First: 4 * mib})
	a := mustAlloc(t, c, 4*mib, 1)
	mark := c.Mark()
	if _, err := c.Free(a); err != nil {
		t.Fatal(err)
	}
	c.StreamCompleted(1, mark)
	if _, growth, _ := c.Alloc(mib, 2); growth.Bytes == 0 {
		t.Error("stream 2 got memory that stream 1 may still use")
	}
	c.StreamCompleted(1, c.Mark())
	if _, growth, _ := c.Alloc(mib, 2); growth.Bytes != 0 {
		t.Errorf("Alloc requested %d bytes although there is clean memory", growth.Bytes)
	}
}

// TestGrowthIsBounded checks that a pool requests a segment only if no range of clean memory is
// large enough. If streams are not synchronized, it may map at most three times the footprint.
func TestGrowthIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SampledFrom([]int64{2 * mib, 8 * mib, 64 * mib}).Draw(t, "first")
		c, err := New(Config{First: first})
		if err != nil {
			t.Fatal(err)
		}
		isSynchronized := rapid.Bool().Draw(t, "streams are synchronized")
		streams := rapid.IntRange(1, 40).Draw(t, "streams")
		var live []Block
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			s := Stream(rapid.IntRange(0, streams-1).Draw(t, "stream"))
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 3 && len(live) > 0:
				i := rapid.IntRange(0, len(live)-1).Draw(t, "block")
				if _, err := c.Free(live[i]); err != nil {
					t.Fatal(err)
				}
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
			case op == 3 && isSynchronized:
				c.StreamCompleted(s, c.Mark())
			default:
				live = append(live, allocBounded(t, c, drawSize(t), s))
			}
			n := c.Stats()
			if limit := max(first, 3*c.footprint()); n.Mapped > limit && !isSynchronized {
				t.Fatalf("mapped %d bytes, want at most %d", n.Mapped, limit)
			}
			if n.Mapped > 0 && n.Segments > maxSegments(n.Mapped, first) {
				t.Fatalf("mapped %d bytes in %d segments, want at most %d",
					n.Mapped, n.Segments, maxSegments(n.Mapped, first))
			}
		}
	})
}

// allocBounded allocates a block. If Alloc requests a segment, it checks that the segment is
// necessary and not too large.
func allocBounded(t *rapid.T, c *Core, size int64, s Stream) Block {
	mapped := c.Stats().Mapped
	v, growth, err := c.Alloc(size, s)
	if err == nil && growth.Bytes != 0 {
		if limit := max(mapped, c.config.First, roundUp(size, 2*mib)); growth.Bytes > limit {
			t.Fatalf("grew by %d bytes for a request of %d, want at most %d", growth.Bytes, size, limit)
		}
		need := uint64(roundUp(size, 2*mib)) >> unitShift
		for r := range c.regions {
			if region := &c.regions[r]; region.sentinel != 0 {
				base, end := c.regionBounds(uint32(r))
				cleanOffset := max(region.dirtyEnd, base) - region.origin
				low := region.origin + uint64(roundUp(int64(cleanOffset), int64(spanUnits)))
				if low < end && end-low >= need {
					t.Fatalf("grew for a request of %d bytes although region %d has %d clean units", size, r,
						end-low)
				}
			}
		}
		if _, err = c.AddSegment(growth, 0); err == nil {
			v, _, err = c.Alloc(size, s)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestMappedMemoryOfRandomPrograms checks that pools map hardly more than a bound: twice the sum
// of the streams' peak footprints, plus 2 MiB for each stream. Clean ranges that are too small for
// a request count as mapped, so the test permits an eighth more.
func TestMappedMemoryOfRandomPrograms(t *testing.T) {
	for _, streams := range []int{1, 10, 100, 1000} {
		worst := 0.0 // largest ratio of mapped memory to the bound
		for seed := range uint64(5) {
			d := rand.New(rand.NewPCG(seed, 1))
			c := newCore(t, Default())
			var live []Block
			peaks := map[uint32]int64{} // peak footprint of each stream, by its number
			for range min(4*streams, 1000) + 200 {
				s := Stream(d.IntN(streams))
				maxSizes := []int64{64 * kib, 2 * mib, 24 * mib, 40 * mib}
				maxSize := maxSizes[d.IntN(len(maxSizes))]
				switch op := d.IntN(10); {
				case op < 4 && len(live) > 0:
					i := d.IntN(len(live))
					if _, err := c.Free(live[i]); err != nil {
						t.Fatal(err)
					}
					live = slices.Delete(live, i, i+1)
				case op == 4:
					c.StreamCompleted(s, c.Mark())
				default:
					live = append(live, mustAlloc(t, c, 1+d.Int64N(maxSize), s))
				}
				sum := int64(0)
				for owner, bytes := range c.footprintByOwner() {
					peaks[owner] = max(peaks[owner], bytes)
				}
				for _, peak := range peaks {
					sum += 2*peak + 2*mib
				}
				bound := max(sum, c.config.First)
				worst = max(worst, float64(c.Stats().Mapped)/float64(bound))
			}
		}
		t.Logf("%d streams: mapped at most %.3f of the bound", streams, worst)
		const maxRatio = 1.125
		if worst > maxRatio {
			t.Errorf("%d streams: mapped %.3f of the bound; want at most %v", streams, worst, maxRatio)
		}
	}
}
