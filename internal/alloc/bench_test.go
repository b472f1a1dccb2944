package alloc

import (
	"math/rand/v2"
	"testing"
)

// mustAlloc allocates a block. If the Core needs a segment, mustAlloc adds it. Segments are at
// addresses 64 GiB apart. An error fails the test.
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

		address := uint64(len(c.segments)+1) << 36
		if _, err := c.AddSegment(grow, address); err != nil {
			tb.Fatal(err)
		}
	}
}

// newCore returns an empty Core. An invalid configuration fails the test.
func newCore(tb testing.TB, config Config) *Core {
	tb.Helper()
	c, err := New(config)
	if err != nil {
		tb.Fatal(err)
	}

	return c
}

// The benchmarks use one stream, and blocks of benchSize bytes unless sizes are random.
const (
	benchStream = 1
	benchSize   = 4096
)

// benchmarkPair measures an Alloc and a Free of the same block. c is in the state that the caller
// has prepared.
func benchmarkPair(b *testing.B, c *Core) {
	first := mustAlloc(b, c, benchSize, benchStream) // adds a segment if necessary
	_, _ = c.Free(first)
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

// BenchmarkPairWithEqualFreeBlocks lets a Core choose among 10,000 free blocks of one size. They do
// not merge, because a live block is between any two of them.
func BenchmarkPairWithEqualFreeBlocks(b *testing.B) {
	c := newCore(b, Default())
	var toFree []Block
	for i := range 20_000 {
		block := mustAlloc(b, c, benchSize, benchStream)
		if i%2 == 1 {
			toFree = append(toFree, block)
		}
	}

	for _, block := range toFree {
		_, _ = c.Free(block)
	}

	benchmarkPair(b, c)
}

// BenchmarkReplace measures a Free of the oldest of 1,000 blocks and an Alloc of another.
func BenchmarkReplace(b *testing.B) {
	c := newCore(b, Default())
	blocks := make([]Block, 1000)
	for i := range blocks {
		blocks[i] = mustAlloc(b, c, benchSize, benchStream)
	}

	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		oldest := &blocks[i%len(blocks)]
		_, _ = c.Free(*oldest)
		*oldest, _, _ = c.Alloc(benchSize, benchStream)
	}
}

// drawCount is the number of random steps that a benchmark repeats, a power of two so that it finds
// each step fast.
const drawCount = 1 << 14

// drawBlockSize returns a random size from 512 B to 1 MiB.
func drawBlockSize(random *rand.Rand) int64 { return Unit + random.Int64N(mib-Unit) }

// newUsedCore returns a Core with the given number of live blocks of 512 B to 1 MiB. Each was
// replaced ten times on average, in random order.
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
		_, _ = c.Free(blocks[i])
		blocks[i] = mustAlloc(tb, c, drawBlockSize(random), benchStream)
	}

	return c, blocks
}

// randomDraws returns the index of the block to free and the size to allocate in each of drawCount
// steps. They are drawn before the measurement.
func randomDraws(liveCount int) (toFree []int, sizes []int64) {
	random := rand.New(rand.NewPCG(3, 4))
	for range drawCount {
		toFree = append(toFree, random.IntN(liveCount))
		sizes = append(sizes, drawBlockSize(random))
	}

	return toFree, sizes
}

// BenchmarkRandom measures a Free of a random block and an Alloc of a random size.
func BenchmarkRandom(b *testing.B) {
	c, blocks := newUsedCore(b, Default(), 10_000)
	toFree, sizes := randomDraws(len(blocks))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		freed := toFree[i%drawCount]
		size := sizes[i%drawCount]
		_, _ = c.Free(blocks[freed])
		block, grow, _ := c.Alloc(size, benchStream)
		if grow.Bytes != 0 {
			_, _ = c.AddSegment(grow, 0)
			block, _, _ = c.Alloc(size, benchStream)
		}

		blocks[freed] = block
	}
}
