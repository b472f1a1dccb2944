package verify

import (
	"testing"

	"pgregory.net/rapid"
)

func TestHistoryFreesBlocksAndStaysWithinLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		elements := rapid.Int64Range(1, 1<<20).Draw(t, "elements")
		h := newHistory(rapid.Uint64().Draw(t, "seed"), elements)
		held, total := map[int]int64{}, int64(0)
		for slot := range 400 {
			block, allocated := h.step(slot)
			if allocated {
				held[block.slot] = block.elements
				total += block.elements
			} else {
				if held[block.slot] != block.elements {
					t.Fatalf("freed %+v, but the slot held %d elements", block, held[block.slot])
				}
				delete(held, block.slot)
				total -= block.elements
			}
			if total > churnBlocks*max(elements, churnUnit) || total != h.total || len(held) != len(h.live) {
				t.Fatalf("%d elements in %d blocks are live, but the history counts %d in %d",
					total, len(held), h.total, len(h.live))
			}
		}
	})
}

func TestHistoryUsesAllSizes(t *testing.T) {
	h := newHistory(1, 4<<20)
	seen := map[int64]bool{}
	for slot := range 100 {
		if block, allocated := h.step(slot); allocated {
			seen[block.elements] = true
		}
	}
	if len(seen) != 3 || !seen[1<<20] || !seen[2<<20] || !seen[4<<20] {
		t.Fatalf("drew the sizes %v, want 1, 2 and 4 MiB elements", seen)
	}
}
