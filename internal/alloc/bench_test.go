package alloc

import (
	"math/rand/v2"
	"testing"
)

// mustAlloc allocates a block, and adds a segment first if the Core needs one.
func mustAlloc(tb testing.TB, c *Core, size int64, stream Stream) Block {
	tb.Helper()
	for {
		block, grow, err := c.Alloc(size, stream)
		if err != nil {
			tb.Fatal(err)
		}

		if grow.Bytes == 0 {
			return block
		}

		const segmentDistance = 1 << 36 // bytes, more than the size of any segment
		address := uint64(len(c.segments)+1) * segmentDistance
		if _, err := c.AddSegment(grow, address); err != nil {
			tb.Fatal(err)
		}
	}
}

func newCore(tb testing.TB, config Config) *Core {
	tb.Helper()
	c, err := New(config)
	if err != nil {
		tb.Fatal(err)
	}

	return c
}

// Arbitrary values for benchmarks.
const (
	benchStream = 1
	benchSize   = 4096
)

func benchmarkPair(b *testing.B, c *Core) {
	first := mustAlloc(b, c, benchSize, benchStream) // ensures that a segment has room
	_, _ = c.Free(first)                             // cannot fail: the block is live
	b.ReportAllocs()
	for b.Loop() {
		block, _, _ := c.Alloc(benchSize, benchStream)
		if _, err := c.Free(block); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPairInEmptyPool(b *testing.B) {
	benchmarkPair(b, newCore(b, Default()))
}

func BenchmarkPairWithLiveBlocks(b *testing.B) {
	c := newCore(b, Default())
	for range 10_000 {
		mustAlloc(b, c, benchSize, benchStream)
	}

	benchmarkPair(b, c)
}

func BenchmarkPairAfterRandomCalls(b *testing.B) {
	c, _ := newUsedCore(b, Default(), 10_000)
	benchmarkPair(b, c)
}

func BenchmarkPairWithEqualFreeBlocks(b *testing.B) {
	c := newCore(b, Default())
	var toFree []Block
	for range 10_000 {
		mustAlloc(b, c, benchSize, benchStream) // a separator, which prevents merges
		toFree = append(toFree, mustAlloc(b, c, benchSize, benchStream))
	}

	mustFreeAll(b, c, toFree...)
	benchmarkPair(b, c)
}

func BenchmarkReplace(b *testing.B) {
	c := newCore(b, Default())
	blocks := make([]Block, 1000)
	for i := range blocks {
		blocks[i] = mustAlloc(b, c, benchSize, benchStream)
	}

	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		oldest := &blocks[i%len(blocks)]
		_, _ = c.Free(*oldest) // cannot fail: the block is live
		*oldest, _, _ = c.Alloc(benchSize, benchStream)
	}
}

// drawCount is the number of steps in randomDraws: a power of two, so that i%drawCount is fast.
const drawCount = 1 << 14

// drawBlockSize returns a size below 1 MiB.
func drawBlockSize(random *rand.Rand) int64 { return Unit + random.Int64N(mib-Unit) }

// newUsedCore returns a Core with live blocks of random sizes, fragmented by random replacements.
func newUsedCore(tb testing.TB, config Config, liveCount int) (*Core, []Block) {
	tb.Helper()
	c := newCore(tb, config)
	random := rand.New(rand.NewPCG(1, 2))
	blocks := make([]Block, liveCount)
	for i := range blocks {
		blocks[i] = mustAlloc(tb, c, drawBlockSize(random), benchStream)
	}

	for range 10 * liveCount {
		i := random.IntN(liveCount)
		mustFreeAll(tb, c, blocks[i])
		blocks[i] = mustAlloc(tb, c, drawBlockSize(random), benchStream)
	}

	return c, blocks
}

// randomDraws returns the index of the block to free and the size to allocate in each step.
func randomDraws(liveCount int) (toFree []int, sizes []int64) {
	random := rand.New(rand.NewPCG(3, 4))
	for range drawCount {
		toFree = append(toFree, random.IntN(liveCount))
		sizes = append(sizes, drawBlockSize(random))
	}

	return toFree, sizes
}

func BenchmarkRandom(b *testing.B) {
	c, blocks := newUsedCore(b, Default(), 10_000)
	toFree, sizes := randomDraws(len(blocks))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		freed := toFree[i%drawCount]
		size := sizes[i%drawCount]
		_, _ = c.Free(blocks[freed]) // cannot fail: the block is live
		block, grow, _ := c.Alloc(size, benchStream)
		needsSegment := grow.Bytes != 0
		if needsSegment {
			_, _ = c.AddSegment(grow, 0) // the address does not matter
			block, _, _ = c.Alloc(size, benchStream)
		}

		blocks[freed] = block
	}
}
