package alloc

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// divergingRank simulates a rank whose history differs from those of other ranks. Its blocks are in
// allocation order.
type divergingRank struct {
	*rank
	streams []Stream // the program's streams, as this rank names them
	pinned  []Block  // pinned blocks, live or parked
}

// step makes the call that op selects. Its arguments depend only on pick, size and the rank's
// blocks, so ranks with the same blocks make the same call.
func (r *divergingRank) step(t rapid.TB, op, pick int, size int64) {
	stream := r.streams[pick%len(r.streams)]
	if len(r.live) == 0 {
		op = 0
	}
	switch op {
	case 0, 1, 2:
		r.alloc(t, size, stream)
	case 3, 4:
		r.free(t, pick%len(r.live))
	case 5:
		if err := r.core.Use(r.live[pick%len(r.live)].Handle, stream); err != nil {
			t.Fatal(err)
		}
	case 6:
		v := r.live[pick%len(r.live)]
		if _, err := r.core.Pin(v.Handle); err != nil {
			t.Fatal(err)
		}
		r.pinned = append(r.pinned, v)
	case 7:
		r.unpin(t, pick)
	default:
		r.core.StreamCompleted(stream, r.core.Mark())
	}
}

func (r *divergingRank) unpin(t rapid.TB, pick int) {
	if len(r.pinned) == 0 {
		return
	}
	i := pick % len(r.pinned)
	if _, _, err := r.core.Unpin(r.pinned[i].Handle); err != nil {
		t.Fatal(err)
	}
	r.pinned = slices.Delete(r.pinned, i, i+1)
}

func (r *divergingRank) completeStreams() {
	for _, s := range r.streams {
		r.core.StreamCompleted(s, r.core.Mark())
	}
}

func stepTogether(t *rapid.T, name string, ranks ...*divergingRank) {
	for range rapid.IntRange(0, 40).Draw(t, name) {
		op, pick := rapid.IntRange(0, 8).Draw(t, "op"), rapid.IntRange(0, 1000).Draw(t, "pick")
		size := rapid.SampledFrom([]int64{512, 4 * kib, 96 * kib, 2 * mib}).Draw(t, "size")
		for _, r := range ranks {
			r.step(t, op, pick, size)
		}
	}
}

// newDivergingRanks returns two ranks whose streams have different names.
func newDivergingRanks(t *rapid.T) []*divergingRank {
	config := Config{
		First:       rapid.SampledFrom([]int64{mib, 16 * mib}).Draw(t, "first"),
		Granularity: 64 * kib,
	}
	config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing"))
	two := newRanks(t, config)
	return []*divergingRank{
		{rank: &two[0], streams: []Stream{0, 1, 2, 3}},
		{rank: &two[1], streams: []Stream{0, 7, 5, 6}},
	}
}

// commonLayout returns the CommonLayout of the ranks' inventories after completing all streams.
func commonLayout(t *rapid.T, all []*divergingRank) (Arrangement, *Conflict) {
	var inventories []Inventory
	for _, r := range all {
		r.completeStreams()
		v, err := r.core.Inventory()
		if err != nil {
			t.Fatal(err)
		}
		inventories = append(inventories, v)
	}
	return CommonLayout(inventories)
}

// TestRebuiltCoresPlaceBlocksIdentically makes the same calls on two ranks. Then each rank uses and
// pins blocks, and allocates and frees other blocks, independently. After Rebuild, both ranks must
// place new blocks identically.
func TestRebuiltCoresPlaceBlocksIdentically(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := newDivergingRanks(t)
		for range rapid.IntRange(1, 4).Draw(t, "recoveries") {
			stepTogether(t, "together", all...)
			for _, r := range all {
				diverge(t, r)
			}
			layout, conflict := commonLayout(t, all)
			if conflict != nil {
				t.Fatalf("CommonLayout returned conflict %+v for identical live blocks", conflict)
			}
			for _, r := range all {
				if _, err := r.core.Rebuild(layout); err != nil {
					t.Fatal(err)
				}
				for len(r.pinned) > 0 {
					r.unpin(t, 0) // in a different order on each rank
				}
				if err := r.core.Verify(); err != nil {
					t.Fatal(err)
				}
			}
			checkSamePlacement(t, all)
			for range rapid.IntRange(0, 40).Draw(t, "afterwards") {
				stepAll(t, all)
			}
		}
	})
}

// diverge makes calls on one rank that do not change its live blocks.
func diverge(t *rapid.T, r *divergingRank) {
	before := len(r.live)
	for range rapid.IntRange(0, 20).Draw(t, "calls on one rank") {
		op := rapid.SampledFrom([]int{0, 0, 3, 5, 6, 7, 8}).Draw(t, "op on one rank")
		pick := rapid.IntRange(0, 1000).Draw(t, "pick on one rank")
		if op == 3 {
			if len(r.live) == before {
				continue
			}
			pick = before + pick%(len(r.live)-before)
		}
		r.step(t, op, pick, rapid.Int64Range(1, 3*mib).Draw(t, "size on one rank"))
	}
	for len(r.live) > before {
		r.free(t, before)
	}
}

func stepAll(t *rapid.T, all []*divergingRank) {
	op := rapid.SampledFrom([]int{0, 1, 3, 5, 8}).Draw(t, "op afterwards")
	pick := rapid.IntRange(0, 1000).Draw(t, "pick afterwards")
	size := rapid.Int64Range(1, 3*mib).Draw(t, "size afterwards")
	for _, r := range all {
		r.step(t, op, pick, size)
		if err := r.core.Verify(); err != nil {
			t.Fatal(err)
		}
	}
	checkSamePlacement(t, all)
}

func checkSamePlacement(t *rapid.T, all []*divergingRank) {
	var places [2][]Range
	for i, r := range all {
		for _, v := range r.live {
			places[i] = append(places[i], Range{v.Segment, v.Offset, v.Size})
			if live, err := r.core.LiveBlock(v.Handle); err != nil || live != v {
				t.Fatalf("LiveBlock = %+v, %v; want %+v", live, err, v)
			}
		}
	}
	if d := cmp.Diff(places[0], places[1]); d != "" {
		t.Fatalf("placements differ (-rank 0 +rank 1):\n%s", d)
	}
	if a, b := all[0].core.Stats(), all[1].core.Stats(); a.Mapped != b.Mapped || a.Live != b.Live {
		t.Fatalf("rank 0 has counters %+v, rank 1 %+v", a, b)
	}
}

func TestBlockLiveOnOneRankIsConflict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := newDivergingRanks(t)
		stepTogether(t, "together", all...)
		all[1].alloc(t, 5*kib, 0)
		extra := all[1].live[len(all[1].live)-1]
		_, conflict := commonLayout(t, all)
		if conflict == nil || conflict.Range != (Range{extra.Segment, extra.Offset, extra.Size}) {
			t.Fatalf("CommonLayout returned conflict %+v, want one at %+v", conflict, extra)
		}
	})
}

func TestRebuildRefusesDeferredBlocks(t *testing.T) {
	two := newRanks(t, Config{First: mib})
	r := &two[0]
	r.alloc(t, kib, 0)
	if err := r.core.Use(r.live[0].Handle, 1); err != nil {
		t.Fatal(err)
	}
	r.free(t, 0)
	_, inventoryErr := r.core.Inventory()
	if _, rebuildErr := r.core.Rebuild(Arrangement{}); !errors.Is(inventoryErr, ErrDeferred) ||
		!errors.Is(rebuildErr, ErrDeferred) {
		t.Fatalf("Inventory = %v, Rebuild = %v; want ErrDeferred from both", inventoryErr, rebuildErr)
	}
}
