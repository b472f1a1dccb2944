package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// A Core merges a freed block with its free neighbors only in the next call. This optimization does
// not change placement.
func TestLastFreedBlockDoesNotChangePlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := corePair{lazy: mustNew(t), eager: mustNew(t)}
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			freesBlock := len(p.live) > 0 && rapid.Bool().Draw(t, "free")
			if freesBlock {
				p.free(t, drawIndexToFree(t, len(p.live)))
			} else {
				size := rapid.SampledFrom([]int64{512, 4096, 65536, 1 << 20}).Draw(t, "size")
				stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
				p.alloc(t, size, stream)
			}

			if err := p.eager.Verify(); err != nil { // also merges the last freed block
				t.Fatal(err)
			}
		}

		if err := p.lazy.Verify(); err != nil {
			t.Fatal(err)
		}

		lazyStats := p.lazy.Stats()
		eagerStats := p.eager.Stats()
		if lazyStats != eagerStats {
			t.Fatalf("lazy Core has counters %+v, eager Core %+v", lazyStats, eagerStats)
		}
	})
}

// corePair passes the same calls to two Cores. The test also calls Verify on the eager Core after
// each call, so that each freed block is merged immediately.
type corePair struct {
	lazy, eager *Core
	live        []blockPair // in the order of allocation
}

type blockPair struct{ lazy, eager Block }

func (p *corePair) alloc(t *rapid.T, size int64, stream Stream) {
	lazy := allocGrowing(t, p.lazy, size, stream)
	eager := allocGrowing(t, p.eager, size, stream)
	isSamePlace := lazy.Segment == eager.Segment && lazy.Offset == eager.Offset
	if !isSamePlace || lazy.Size != eager.Size {
		t.Fatalf("%d bytes on stream %d: lazy Core placed %+v, eager Core %+v",
			size, stream, lazy, eager)
	}

	p.live = append(p.live, blockPair{lazy: lazy, eager: eager})
}

func (p *corePair) free(t *rapid.T, i int) {
	mustFree(t, p.lazy, p.live[i].lazy)
	mustFree(t, p.eager, p.live[i].eager)
	p.live = append(p.live[:i], p.live[i+1:]...)
}

// drawIndexToFree prefers the newest live block, because freeing a block right after its Alloc has
// a fast path.
func drawIndexToFree(t *rapid.T, liveCount int) int {
	newest := liveCount - 1
	isRandom := rapid.IntRange(0, 3).Draw(t, "which") == 0
	if isRandom {
		return rapid.IntRange(0, newest).Draw(t, "index")
	}

	return newest
}

func mustNew(t *rapid.T) *Core {
	c, err := New(Config{First: 4 * mib})
	if err != nil {
		t.Fatal(err)
	}

	return c
}

func mustFree(t *rapid.T, c *Core, b Block) {
	if _, err := c.Free(b); err != nil {
		t.Fatal(err)
	}
}

func allocGrowing(t *rapid.T, c *Core, size int64, stream Stream) Block {
	for {
		b, growth, err := c.Alloc(size, stream)
		if err != nil {
			t.Fatal(err)
		}

		if growth.Bytes == 0 {
			return b
		}

		// Without AddressOrder, the address does not affect placement.
		if _, err := c.AddSegment(growth, 0); err != nil {
			t.Fatal(err)
		}
	}
}
