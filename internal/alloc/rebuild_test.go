package alloc

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// recovering is a rank whose history diverges from that of others. Its blocks are in the order in
// which they were allocated.
type recovering struct {
	*rank
	streams []Stream // the program's streams
	pinned  []Block  // live or parked
}

// step makes one call, which depends only on the given numbers, so that ranks with the same blocks
// can make the same call.
func (r *recovering) step(t rapid.TB, what, which int, size int64) {
	stream := r.streams[which%len(r.streams)]
	if len(r.held) == 0 {
		what = 0
	}
	switch what {
	case 0, 1, 2:
		r.alloc(t, size, stream)
	case 3, 4:
		r.free(t, which%len(r.held))
	case 5:
		if err := r.core.Use(r.held[which%len(r.held)].Handle, stream); err != nil {
			t.Fatal(err)
		}
	case 6:
		v := r.held[which%len(r.held)]
		if _, err := r.core.Pin(v.Handle); err != nil {
			t.Fatal(err)
		}
		r.pinned = append(r.pinned, v)
	case 7:
		r.unpin(t, which)
	default:
		r.core.Synced(stream, r.core.Mark())
	}
}

func (r *recovering) unpin(t rapid.TB, which int) {
	if len(r.pinned) == 0 {
		return
	}
	i := which % len(r.pinned)
	if _, _, err := r.core.Unpin(r.pinned[i].Handle); err != nil {
		t.Fatal(err)
	}
	r.pinned = slices.Delete(r.pinned, i, i+1)
}

// drain ends all uses.
func (r *recovering) drain() {
	for _, s := range r.streams {
		r.core.Synced(s, r.core.Mark())
	}
}

// steps makes the same random calls on all given ranks.
func steps(t *rapid.T, name string, ranks ...*recovering) {
	for range rapid.IntRange(0, 40).Draw(t, name) {
		what, which := rapid.IntRange(0, 8).Draw(t, "what"), rapid.IntRange(0, 1000).Draw(t, "which")
		size := rapid.SampledFrom([]int64{512, 4 * kib, 96 * kib, 2 * mib}).Draw(t, "size")
		for _, r := range ranks {
			r.step(t, what, which, size)
		}
	}
}

// recoveringRanks returns ranks whose streams have different names.
func recoveringRanks(t *rapid.T) []*recovering {
	config := Config{
		First:       rapid.SampledFrom([]int64{mib, 16 * mib}).Draw(t, "first"),
		Granularity: 64 * kib,
	}
	config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing"))
	two := ranks(t, config)
	return []*recovering{
		{rank: &two[0], streams: []Stream{0, 1, 2, 3}},
		{rank: &two[1], streams: []Stream{0, 7, 5, 6}},
	}
}

// union drains the ranks and returns their arrangement.
func union(t *rapid.T, all []*recovering) (Arrangement, *Conflict) {
	var inventories []Inventory
	for _, r := range all {
		r.drain()
		v, err := r.core.Held()
		if err != nil {
			t.Fatal(err)
		}
		inventories = append(inventories, v)
	}
	return Union(inventories)
}

// TestRebuiltCoresPlaceBlocksIdentically gives two ranks one history. Then each rank frees, uses
// and pins its blocks on its own, or allocates some and frees them again, and both are rebuilt.
// From then on both place new blocks identically, until the next recovery.
func TestRebuiltCoresPlaceBlocksIdentically(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := recoveringRanks(t)
		for range rapid.IntRange(1, 4).Draw(t, "recoveries") {
			steps(t, "together", all...)
			for _, r := range all {
				diverge(t, r)
			}
			layout, conflict := union(t, all)
			if conflict != nil {
				t.Fatalf("the live blocks are the same, but Union returned %+v", conflict)
			}
			for _, r := range all {
				if _, err := r.core.Rebuild(layout); err != nil {
					t.Fatal(err)
				}
				for len(r.pinned) > 0 {
					r.unpin(t, 0) // as graphs are closed, in a different order on each rank
				}
				if err := r.core.Verify(); err != nil {
					t.Fatal(err)
				}
			}
			sameHeld(t, all)
			for range rapid.IntRange(0, 40).Draw(t, "afterwards") {
				stepEqually(t, all)
			}
		}
	})
}

// diverge makes calls on one rank that leave its live blocks unchanged.
func diverge(t *rapid.T, r *recovering) {
	before := len(r.held)
	for range rapid.IntRange(0, 20).Draw(t, "alone") {
		what := rapid.SampledFrom([]int{0, 0, 3, 5, 6, 7, 8}).Draw(t, "what alone")
		which := rapid.IntRange(0, 1000).Draw(t, "which alone")
		if what == 3 {
			if len(r.held) == before {
				continue
			}
			which = before + which%(len(r.held)-before)
		}
		r.step(t, what, which, rapid.Int64Range(1, 3*mib).Draw(t, "size alone"))
	}
	for len(r.held) > before {
		r.free(t, before)
	}
}

// stepEqually makes one call on all ranks and compares the placements.
func stepEqually(t *rapid.T, all []*recovering) {
	what := rapid.SampledFrom([]int{0, 1, 3, 5, 8}).Draw(t, "what afterwards")
	which := rapid.IntRange(0, 1000).Draw(t, "which afterwards")
	size := rapid.Int64Range(1, 3*mib).Draw(t, "size afterwards")
	for _, r := range all {
		r.step(t, what, which, size)
		if err := r.core.Verify(); err != nil {
			t.Fatal(err)
		}
	}
	sameHeld(t, all)
}

// sameHeld compares the places of the blocks of all ranks.
func sameHeld(t *rapid.T, all []*recovering) {
	var places [2][]Range
	for i, r := range all {
		for _, v := range r.held {
			places[i] = append(places[i], Range{v.Segment, v.Offset, v.Size})
			if live, err := r.core.Live(v.Handle); err != nil || live != v {
				t.Fatalf("%+v is %+v, %v", v, live, err)
			}
		}
	}
	if d := cmp.Diff(places[0], places[1]); d != "" {
		t.Fatalf("placed differently:\n%s", d)
	}
	if a, b := all[0].core.Stats(), all[1].core.Stats(); a.Mapped != b.Mapped || a.Live != b.Live {
		t.Fatalf("%+v and %+v", a, b)
	}
}

func TestBlockLiveOnOneRankIsAConflict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := recoveringRanks(t)
		steps(t, "together", all...)
		all[1].alloc(t, 5*kib, 0)
		odd := all[1].held[len(all[1].held)-1]
		_, conflict := union(t, all)
		if conflict == nil || conflict.Range != (Range{odd.Segment, odd.Offset, odd.Size}) {
			t.Fatalf("the conflict is %+v, not %+v", conflict, odd)
		}
	})
}

func TestRebuildRefusesDeferredBlocks(t *testing.T) {
	two := ranks(t, Config{First: mib})
	r := &two[0]
	r.alloc(t, kib, 0)
	if err := r.core.Use(r.held[0].Handle, 1); err != nil {
		t.Fatal(err)
	}
	r.free(t, 0)
	_, err := r.core.Held()
	if _, rebuilding := r.core.Rebuild(Arrangement{}); !errors.Is(err, ErrDeferred) ||
		!errors.Is(rebuilding, ErrDeferred) {
		t.Fatalf("%v, %v", err, rebuilding)
	}
}
