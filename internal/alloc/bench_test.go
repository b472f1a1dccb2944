package alloc

import (
	"math/rand/v2"
	"testing"
)

// mustAlloc allocates a block. Segments that the Core needs are added at addresses 64 GiB apart.
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
		if _, err := c.AddSegment(grow, uint64(len(c.segments)+1)<<36); err != nil {
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

func benchmarkPair(b *testing.B, c *Core, size int64) {
	_, _ = c.Free(mustAlloc(b, c, size, 1))
	b.ReportAllocs()
	for b.Loop() {
		block, _, _ := c.Alloc(size, 1)
		if _, err := c.Free(block); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPairInEmptyPool(b *testing.B) {
	benchmarkPair(b, newCore(b, Default()), 4096)
}

func BenchmarkPairWithLiveBlocks(b *testing.B) {
	c := newCore(b, Default())
	for range 10_000 {
		mustAlloc(b, c, 4096, 1)
	}
	benchmarkPair(b, c, 4096)
}

func BenchmarkPairAfterRandomCalls(b *testing.B) {
	c, _ := newUsedCore(b, Default(), 10_000)
	benchmarkPair(b, c, 4096)
}

func BenchmarkPairWithEqualFreeBlocks(b *testing.B) {
	c := newCore(b, Default())
	var odd []Block
	for i := range 20_000 {
		block := mustAlloc(b, c, 4096, 1)
		if i%2 == 1 {
			odd = append(odd, block)
		}
	}
	for _, block := range odd {
		_, _ = c.Free(block)
	}
	benchmarkPair(b, c, 4096)
}

func BenchmarkReplace(b *testing.B) {
	c := newCore(b, Default())
	blocks := make([]Block, 1000)
	for i := range blocks {
		blocks[i] = mustAlloc(b, c, 4096, 1)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		oldest := &blocks[i%len(blocks)]
		_, _ = c.Free(*oldest)
		*oldest, _, _ = c.Alloc(4096, 1)
	}
}

const drawCount = 1 << 14

// newUsedCore returns a Core with live blocks of 512 B to 1 MiB. Each was replaced ten times on
// average, in random order.
func newUsedCore(tb testing.TB, config Config, live int) (*Core, []Block) {
	tb.Helper()
	c := newCore(tb, config)
	random := rand.New(rand.NewPCG(1, 2))
	blocks := make([]Block, live)
	for i := range blocks {
		blocks[i] = mustAlloc(tb, c, Unit+random.Int64N(mib-Unit), 1)
	}
	for range 10 * live {
		i := random.IntN(live)
		_, _ = c.Free(blocks[i])
		blocks[i] = mustAlloc(tb, c, Unit+random.Int64N(mib-Unit), 1)
	}
	return c, blocks
}

// randomDraws returns the index of the block to free and the size to allocate in each step.
func randomDraws(live int) (victims []int, sizes []int64) {
	random := rand.New(rand.NewPCG(3, 4))
	for range drawCount {
		victims = append(victims, random.IntN(live))
		sizes = append(sizes, Unit+random.Int64N(mib-Unit))
	}
	return victims, sizes
}

func BenchmarkRandom(b *testing.B) {
	c, blocks := newUsedCore(b, Default(), 10_000)
	victims, sizes := randomDraws(len(blocks))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v := victims[i%drawCount]
		_, _ = c.Free(blocks[v])
		block, grow, _ := c.Alloc(sizes[i%drawCount], 1)
		if grow.Bytes != 0 {
			_, _ = c.AddSegment(grow, 0)
			block, _, _ = c.Alloc(sizes[i%drawCount], 1)
		}
		blocks[v] = block
	}
}
