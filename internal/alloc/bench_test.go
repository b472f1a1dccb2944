package alloc

import (
	"math/rand/v2"
	"testing"
)

// mustAlloc allocates a block. If the Core requests a segment, mustAlloc adds one at a fictitious
// address 64 GiB above the previous segment.
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

func BenchmarkPairFresh(b *testing.B) {
	benchmarkPair(b, newCore(b, Default()), 4096)
}

func BenchmarkPairLive(b *testing.B) {
	c := newCore(b, Default())
	for range 10_000 {
		mustAlloc(b, c, 4096, 1)
	}
	benchmarkPair(b, c, 4096)
}

func BenchmarkPairChurned(b *testing.B) {
	c, _ := newChurnedCore(b, Default(), 10_000)
	benchmarkPair(b, c, 4096)
}

func BenchmarkPairEqual(b *testing.B) {
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

const draws = 1 << 14

// newChurnedCore returns a Core with live blocks of 512 B to 1 MiB. On average, each block has
// been replaced ten times, in random order.
func newChurnedCore(tb testing.TB, config Config, live int) (*Core, []Block) {
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

// randomDraws returns, for each step of a benchmark, the index of the block to free and the size of
// the block to allocate.
func randomDraws(live int) (victims []int, sizes []int64) {
	random := rand.New(rand.NewPCG(3, 4))
	for range draws {
		victims = append(victims, random.IntN(live))
		sizes = append(sizes, Unit+random.Int64N(mib-Unit))
	}
	return victims, sizes
}

func BenchmarkRandom(b *testing.B) {
	c, blocks := newChurnedCore(b, Default(), 10_000)
	victims, sizes := randomDraws(len(blocks))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v := victims[i%draws]
		_, _ = c.Free(blocks[v])
		block, grow, _ := c.Alloc(sizes[i%draws], 1)
		if grow.Bytes != 0 {
			_, _ = c.AddSegment(grow, 0)
			block, _, _ = c.Alloc(sizes[i%draws], 1)
		}
		blocks[v] = block
	}
}
