package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// TestLastFreedBlockDoesNotChangePlacement compares a Core with one that merges the last freed
// block after every call (eager).
func TestLastFreedBlockDoesNotChangePlacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lazy, eager := mustNew(t), mustNew(t)
		var live [][2]Block
		for range rapid.IntRange(1, 200).Draw(t, "calls") {
			if len(live) > 0 && rapid.Bool().Draw(t, "free") {
				i := len(live) - 1
				if rapid.IntRange(0, 3).Draw(t, "which") == 0 {
					i = rapid.IntRange(0, i).Draw(t, "index")
				}

				mustFree(t, lazy, live[i][0])
				mustFree(t, eager, live[i][1])
				live = append(live[:i], live[i+1:]...)
			} else {
				size := rapid.SampledFrom([]int64{512, 4096, 65536, 1 << 20}).Draw(t, "size")
				stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
				a, b := allocGrowing(t, lazy, size, stream), allocGrowing(t, eager, size, stream)
				if a.Segment != b.Segment || a.Offset != b.Offset || a.Size != b.Size {
					t.Fatalf("%d bytes on stream %d: lazy Core placed %+v, eager Core %+v", size, stream, a, b)
				}

				live = append(live, [2]Block{a, b})
			}

			if err := eager.Verify(); err != nil {
				t.Fatal(err)
			}
		}

		if err := lazy.Verify(); err != nil {
			t.Fatal(err)
		}

		if a, b := lazy.Stats(), eager.Stats(); a != b {
			t.Fatalf("lazy Core has counters %+v, eager Core %+v", a, b)
		}
	})
}

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

func allocGrowing(t *rapid.T, c *Core, size int64, stream Stream) Block {
	for {
		b, growth, err := c.Alloc(size, stream)
		if err != nil {
			t.Fatal(err)
		}

		if growth.Bytes == 0 {
			return b
		}

		if _, err := c.AddSegment(growth, 0); err != nil {
			t.Fatal(err)
		}
	}
}
