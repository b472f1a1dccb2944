package verify

import (
	"testing"

	"pgregory.net/rapid"
)

func TestHistoryFreesBlocksAndStaysWithinLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		elements := rapid.Int64Range(1, 1<<20).Draw(t, "elements")
		h := newGenerator(rapid.Uint64().Draw(t, "seed"), elements)
		live, total := map[int]int64{}, int64(0)
		for slot := range 400 {
			buffer, allocated := h.step(slot)
			if allocated {
				live[buffer.slot] = buffer.elements
				total += buffer.elements
			} else {
				if live[buffer.slot] != buffer.elements {
					t.Fatalf("step freed %+v, want %d elements", buffer, live[buffer.slot])
				}

				delete(live, buffer.slot)
				total -= buffer.elements
			}

			if total > maxLargestBuffers*max(elements, minChurnElements) || total != h.liveElements ||
				len(live) != len(h.live) {
				t.Fatalf("%d elements are live in %d buffers, but the generator counts %d in %d",
					total, len(live), h.liveElements, len(h.live))
			}
		}
	})
}

func TestHistoryUsesAllSizes(t *testing.T) {
	h := newGenerator(1, 4<<20)
	drawn := map[int64]bool{}
	for slot := range 100 {
		if buffer, allocated := h.step(slot); allocated {
			drawn[buffer.elements] = true
		}
	}

	if len(drawn) != 3 || !drawn[1<<20] || !drawn[2<<20] || !drawn[4<<20] {
		t.Fatalf("drew sizes of %v elements, want 1<<20, 2<<20 and 4<<20", drawn)
	}
}
