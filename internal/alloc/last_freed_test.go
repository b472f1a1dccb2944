package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// A Core does not merge a freed block with its free neighbors at once, but in the next call. If
// that call allocates the block again, the merge is not necessary. This saves time, and must not
// change where blocks are placed.

// TestLastFreedBlockDoesNotChangePlacement makes the same random calls on two Cores. One is called
// eager: Verify, which merges the last freed block, follows each of its calls. The other is called
// lazy. Both must place blocks at the same offsets.
func TestLastFreedBlockDoesNotChangePlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := corePair{lazy: mustNew(t), eager: mustNew(t)}
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			isFree := len(p.live) > 0 && rapid.Bool().Draw(t, "free")
			if isFree {
				p.free(t, drawIndexToFree(t, len(p.live)))
			} else {
				size := rapid.SampledFrom([]int64{512, 4096, 65536, 1 << 20}).Draw(t, "size")
				stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
				p.alloc(t, size, stream)
			}

			if err := p.eager.Verify(); err != nil {
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

// corePair holds two Cores on which the same calls are made.
type corePair struct {
	lazy, eager *Core
	live        []blockPair // in the order of allocation
}

// blockPair holds the blocks that two Cores returned for the same request.
type blockPair struct{ lazy, eager Block }

// alloc allocates a block on both Cores, and checks that they place it identically.
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

// free frees the block p.live[i] on both Cores.
func (p *corePair) free(t *rapid.T, i int) {
	mustFree(t, p.lazy, p.live[i].lazy)
	mustFree(t, p.eager, p.live[i].eager)
	p.live = append(p.live[:i], p.live[i+1:]...)
}

// drawIndexToFree returns the index of the newest live block in three of four cases, and otherwise
// a random index.
func drawIndexToFree(t *rapid.T, liveCount int) int {
	newest := liveCount - 1
	isRandom := rapid.IntRange(0, 3).Draw(t, "which") == 0
	if isRandom {
		return rapid.IntRange(0, newest).Draw(t, "index")
	}

	return newest
}

// mustNew returns an empty Core whose first segment will have 4 MiB.
func mustNew(t *rapid.T) *Core {
	c, err := New(Config{First: 4 << 20})
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

// allocGrowing allocates a block. If the Core needs a segment, allocGrowing adds it.
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
