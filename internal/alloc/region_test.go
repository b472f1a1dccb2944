package alloc

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A pool maps memory in segments. A segment is divided into regions, each of which belongs to one
// stream. A region consists of spans of 2 MiB. Its memory is dirty up to an end, and clean above:
// no queued work uses clean memory, so other streams can take it without waiting. newCore returns
// an empty pool. mustAlloc allocates a block, and adds a segment if the pool requests one.

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
		region := &c.regions[r]
		if region.sentinel == 0 { // an unused record
			continue
		}

		base, end := c.regionBounds(uint32(r))
		dirtyUnits := max(region.dirtyEnd, base) - base // 0 in a clean region
		dirtySpans := uint64(roundUp(int64(dirtyUnits), int64(spanUnits)))
		bytes[region.owner] += int64(min(dirtySpans, end-base)) << unitShift
	}

	return bytes
}

// maxSegments returns the maximum number of segments in which a pool may map the given number of
// bytes, if its first segment has first bytes. Each later segment is at least as large as all
// earlier ones together, so the mapped memory doubles. One more is permitted, because the quotient
// is rounded down.
func maxSegments(mapped, first int64) int {
	doublings := bits.Len64(uint64(mapped/first) - 1)
	return 1 + doublings + 1
}

// TestMappedMemoryIsBoundedByUse allocates one block on each stream. The pool may map twice the
// memory that it needs, and 2 MiB for each stream, because streams do not share spans.
func TestMappedMemoryIsBoundedByUse(t *testing.T) {
	oneMiB := func(int) int64 { return mib }
	for _, c := range []struct {
		name        string
		streamCount int
		size        func(stream int) int64 // of the stream's block
	}{
		{"1", 1, oneMiB},
		{"10", 10, oneMiB},
		{"100", 100, oneMiB},
		{"1000", 1000, oneMiB},
		{
			"1000 with 0.5 to 20 MiB", 1000,
			func(stream int) int64 { return int64(1+stream%40) * mib / 2 },
		},
		{
			"1000 with irregular sizes", 1000,
			func(stream int) int64 { return int64(1+stream*stream%97) * mib / 8 },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			core := newCore(t, Default())
			needed := int64(0)
			for stream := range c.streamCount {
				mustAlloc(t, core, c.size(stream), Stream(stream))
				needed += c.size(stream)
			}

			stats := core.Stats()
			t.Logf("%d MiB on %d streams: %d MiB mapped in %d segments",
				needed/mib, c.streamCount, stats.Mapped/mib, stats.Segments)
			const first = 64 * mib // size of the first segment by default
			limit := max(first, 2*needed+int64(c.streamCount)*2*mib)
			if stats.Mapped > limit {
				t.Errorf("mapped %d bytes, want at most %d", stats.Mapped, limit)
			}

			if n := maxSegments(stats.Mapped, first); stats.Segments > n {
				t.Errorf("mapped %d bytes in %d segments, want at most %d", stats.Mapped,
					stats.Segments, n)
			}

			if err := core.Verify(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSynchronizedStreamsShareMemory uses streams one after another. The work of each stream is
// complete before the next stream allocates blocks, so all can use the same memory.
func TestSynchronizedStreamsShareMemory(t *testing.T) {
	c := newCore(t, Default())
	for stream := range Stream(1000) {
		large := mustAlloc(t, c, 20*mib, stream)
		small := mustAlloc(t, c, mib, stream)
		for _, block := range []Block{large, small} {
			if _, err := c.Free(block); err != nil {
				t.Fatal(err)
			}
		}

		c.StreamCompleted(stream, c.Mark())
	}

	if n := c.Stats(); n.Segments != 1 {
		t.Errorf("1000 successive streams needed %d segments (%d bytes), want 1", n.Segments, n.Mapped)
	}
}

// A mark is a point in the history of a pool. The host has waited for the work before it. Memory
// that was freed after the mark may still be in use.
func TestMemoryFreedAfterMarkIsNotClean(t *testing.T) {
	c := newCore(t, Config{First: 4 * mib})
	const stream1, stream2 = 1, 2
	block := mustAlloc(t, c, 4*mib, stream1)
	mark := c.Mark()
	if _, err := c.Free(block); err != nil {
		t.Fatal(err)
	}

	c.StreamCompleted(stream1, mark)
	if _, growth, _ := c.Alloc(mib, stream2); growth.Bytes == 0 {
		t.Error("stream 2 got memory that stream 1 may still use")
	}

	c.StreamCompleted(stream1, c.Mark())
	if _, growth, _ := c.Alloc(mib, stream2); growth.Bytes != 0 {
		t.Errorf("Alloc requested %d bytes although there is clean memory", growth.Bytes)
	}
}

// TestGrowthIsBounded checks that a pool requests a segment only if no range of clean memory is
// large enough. If streams are not synchronized, it may map at most three times the footprint: the
// memory that is not clean.
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

			stats := c.Stats()
			if limit := max(first, 3*c.footprint()); stats.Mapped > limit && !isSynchronized {
				t.Fatalf("mapped %d bytes, want at most %d", stats.Mapped, limit)
			}

			if stats.Mapped == 0 {
				continue
			}

			if n := maxSegments(stats.Mapped, first); stats.Segments > n {
				t.Fatalf("mapped %d bytes in %d segments, want at most %d", stats.Mapped,
					stats.Segments, n)
			}
		}
	})
}

// allocBounded allocates a block. If Alloc requests a segment, it checks that the segment is
// necessary and not too large, and adds it.
func allocBounded(t *rapid.T, c *Core, size int64, s Stream) Block {
	mapped := c.Stats().Mapped
	block, growth, err := c.Alloc(size, s)
	if err == nil && growth.Bytes != 0 {
		// The mapped memory may double.
		limit := max(mapped, c.config.First, roundUp(size, 2*mib))
		if growth.Bytes > limit {
			t.Fatalf("grew by %d bytes for a request of %d, want at most %d", growth.Bytes, size, limit)
		}

		checkNoCleanRange(t, c, size)
		if _, err = c.AddSegment(growth, 0); err == nil {
			block, _, err = c.Alloc(size, s)
		}
	}

	if err != nil {
		t.Fatal(err)
	}

	return block
}

// checkNoCleanRange fails the test if the clean memory of a region is large enough for a request.
func checkNoCleanRange(t *rapid.T, c *Core, size int64) {
	needed := uint64(roundUp(size, 2*mib)) >> unitShift
	for r := range c.regions {
		region := &c.regions[r]
		if region.sentinel == 0 { // an unused record
			continue
		}

		base, end := c.regionBounds(uint32(r))
		cleanOffset := max(region.dirtyEnd, base) - region.origin
		low := region.origin + uint64(roundUp(int64(cleanOffset), int64(spanUnits)))
		if low < end && end-low >= needed {
			t.Fatalf("grew for a request of %d bytes although region %d has %d clean units of %d bytes",
				size, r, end-low, Unit)
		}
	}
}

// TestMappedMemoryOfRandomPrograms checks that pools map hardly more than a bound: twice the sum
// of the streams' peak footprints, plus 2 MiB for each stream. Clean ranges that are too small for
// a request count as mapped, so the test permits an eighth more.
func TestMappedMemoryOfRandomPrograms(t *testing.T) {
	const maxRatio = 1.125 // of mapped memory to the bound
	for _, streams := range []int{1, 10, 100, 1000} {
		worst := 0.0
		for seed := range uint64(5) {
			worst = max(worst, worstRatio(t, streams, seed))
		}

		t.Logf("%d streams: mapped at most %.3f of the bound", streams, worst)
		if worst > maxRatio {
			t.Errorf("%d streams: mapped %.3f of the bound; want at most %v", streams, worst, maxRatio)
		}
	}
}

// worstRatio runs a random program and returns the largest ratio of mapped memory to the bound of
// TestMappedMemoryOfRandomPrograms. Of its calls, about 40% free a block, 10% report that the work
// of a stream is complete, and 50% allocate a block.
func worstRatio(t *testing.T, streams int, seed uint64) (worst float64) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	maxSizes := []int64{64 * kib, 2 * mib, 24 * mib, 40 * mib}
	c := newCore(t, Default())
	var live []Block
	peaks := map[uint32]int64{} // peak footprint of each stream, by its number
	callCount := 200 + min(4*streams, 1000)
	for range callCount {
		stream := Stream(random.IntN(streams))
		maxSize := maxSizes[random.IntN(len(maxSizes))]
		switch op := random.IntN(10); {
		case op < 4 && len(live) > 0:
			i := random.IntN(len(live))
			if _, err := c.Free(live[i]); err != nil {
				t.Fatal(err)
			}

			live = slices.Delete(live, i, i+1)
		case op == 4:
			c.StreamCompleted(stream, c.Mark())
		default:
			live = append(live, mustAlloc(t, c, 1+random.Int64N(maxSize), stream))
		}

		for owner, bytes := range c.footprintByOwner() {
			peaks[owner] = max(peaks[owner], bytes)
		}

		sum := int64(0)
		for _, peak := range peaks {
			sum += 2*peak + 2*mib
		}

		bound := max(sum, c.config.First)
		worst = max(worst, float64(c.Stats().Mapped)/float64(bound))
	}

	return worst
}
