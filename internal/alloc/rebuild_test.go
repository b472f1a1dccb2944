package alloc

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// After a fault, the ranks of a job may have made different calls, and so their Cores may differ.
// Each lists its live blocks in an Inventory. CommonLayout computes one arrangement of memory from
// all inventories, and Rebuild changes each Core to it.

// divergingRank simulates a rank of a program whose calls differ between ranks for a while.
type divergingRank struct {
	*rank            // has the Core and its live blocks, in the order of allocation
	streams []Stream // the program's streams, as this rank names them
	pinned  []Block  // pinned blocks, live or freed; in this list once for each Pin
}

// call is a call that a rank can make.
type call int

const (
	callAlloc call = iota
	callFree
	callUse // lets another stream use a block
	callPin // keeps a block allocated even if it is freed
	callUnpin
	callComplete // reports that the work of a stream is complete
)

// step makes a call. Its arguments depend only on pick, size and the rank's blocks, so ranks with
// the same blocks make the same call. Without blocks, a rank allocates one instead.
func (r *divergingRank) step(t rapid.TB, c call, pick int, size int64) {
	stream := r.streams[pick%len(r.streams)]
	if len(r.live) == 0 {
		r.alloc(t, size, stream)
		return
	}

	i := pick % len(r.live)
	switch c {
	case callAlloc:
		r.alloc(t, size, stream)
	case callFree:
		r.free(t, i)
	case callUse:
		if err := r.core.Use(r.live[i].Handle, stream); err != nil {
			t.Fatal(err)
		}
	case callPin:
		block := r.live[i]
		if _, err := r.core.Pin(block.Handle); err != nil {
			t.Fatal(err)
		}

		r.pinned = append(r.pinned, block)
	case callUnpin:
		r.unpin(t, pick)
	case callComplete:
		r.core.StreamCompleted(stream, r.core.Mark())
	}
}

// unpin undoes a Pin of one of the pinned blocks, if there are any.
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

// completeStreams reports that the work of all streams is complete.
func (r *divergingRank) completeStreams() {
	for _, s := range r.streams {
		r.core.StreamCompleted(s, r.core.Mark())
	}
}

// stepTogether makes up to 40 random calls, each on both ranks.
func stepTogether(t *rapid.T, ranks []*divergingRank) {
	// Allocations and frees are in the list more than once, so that they are more frequent.
	calls := []call{
		callAlloc, callAlloc, callAlloc, callFree, callFree, callUse, callPin, callUnpin,
		callComplete,
	}
	for range rapid.IntRange(0, 40).Draw(t, "calls on both ranks") {
		c := rapid.SampledFrom(calls).Draw(t, "call")
		pick := rapid.IntRange(0, 1000).Draw(t, "pick")
		size := rapid.SampledFrom([]int64{512, 4 * kib, 96 * kib, 2 * mib}).Draw(t, "size")
		for _, r := range ranks {
			r.step(t, c, pick, size)
		}
	}
}

// newDivergingRanks returns two ranks without blocks, which name three of their streams
// differently.
func newDivergingRanks(t *rapid.T) []*divergingRank {
	config := Config{
		First:       rapid.SampledFrom([]int64{mib, 16 * mib}).Draw(t, "first"),
		Granularity: 64 * kib,
	}
	config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing")) // one of two ways
	pair := newRanks(t, config)
	return []*divergingRank{
		{rank: &pair[0], streams: []Stream{0, 1, 2, 3}},
		{rank: &pair[1], streams: []Stream{0, 7, 5, 6}},
	}
}

// commonLayout completes all streams and then returns the layout that suits the blocks of all
// ranks. It returns a conflict if there is none.
func commonLayout(t *rapid.T, ranks []*divergingRank) (Arrangement, *Conflict) {
	var inventories []Inventory
	for _, r := range ranks {
		r.completeStreams()
		inventory, err := r.core.Inventory()
		if err != nil {
			t.Fatal(err)
		}

		inventories = append(inventories, inventory)
	}

	return CommonLayout(inventories)
}

// TestRebuiltCoresPlaceBlocksIdentically makes the same calls on two ranks. Then each rank uses and
// pins blocks, and allocates and frees other blocks, independently. After Rebuild, both ranks must
// place new blocks identically.
func TestRebuiltCoresPlaceBlocksIdentically(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := newDivergingRanks(t)
		for range rapid.IntRange(1, 4).Draw(t, "recoveries") {
			stepTogether(t, ranks)
			for _, r := range ranks {
				diverge(t, r)
			}

			layout, conflict := commonLayout(t, ranks)
			if conflict != nil {
				t.Fatalf("CommonLayout returned conflict %+v for identical live blocks", conflict)
			}

			for _, r := range ranks {
				if _, err := r.core.Rebuild(layout); err != nil {
					t.Fatal(err)
				}

				for len(r.pinned) > 0 {
					r.unpin(t, 0) // the first, which may be another block on each rank
				}

				if err := r.core.Verify(); err != nil {
					t.Fatal(err)
				}
			}

			checkSamePlacement(t, ranks)
			for range rapid.IntRange(0, 40).Draw(t, "calls afterwards") {
				stepAndCompare(t, ranks)
			}
		}
	})
}

// diverge makes random calls on one rank. In the end, its live blocks are those that it had before.
func diverge(t *rapid.T, r *divergingRank) {
	before := len(r.live)
	calls := []call{
		callAlloc, callAlloc, callFree, callUse, callPin, callUnpin, callComplete,
	}
	for range rapid.IntRange(0, 20).Draw(t, "calls on one rank") {
		c := rapid.SampledFrom(calls).Draw(t, "call on one rank")
		pick := rapid.IntRange(0, 1000).Draw(t, "pick on one rank")
		if c == callFree { // only a block that diverge has allocated
			if len(r.live) == before {
				continue
			}

			pick = before + pick%(len(r.live)-before)
		}

		r.step(t, c, pick, rapid.Int64Range(1, 3*mib).Draw(t, "size on one rank"))
	}

	for len(r.live) > before {
		r.free(t, before)
	}
}

// stepAndCompare makes a random call on both ranks, and fails the test if their placement differs
// then.
func stepAndCompare(t *rapid.T, ranks []*divergingRank) {
	calls := []call{callAlloc, callAlloc, callFree, callUse, callComplete}
	c := rapid.SampledFrom(calls).Draw(t, "call afterwards")
	pick := rapid.IntRange(0, 1000).Draw(t, "pick afterwards")
	size := rapid.Int64Range(1, 3*mib).Draw(t, "size afterwards")
	for _, r := range ranks {
		r.step(t, c, pick, size)
		if err := r.core.Verify(); err != nil {
			t.Fatal(err)
		}
	}

	checkSamePlacement(t, ranks)
}

// rangeOf returns where a block is.
func rangeOf(b Block) Range {
	return Range{Segment: b.Segment, Offset: b.Offset, Size: b.Size}
}

// checkSamePlacement fails the test unless both ranks have their live blocks at the same places and
// the same counters. It also fails if a Core does not know one of the blocks.
func checkSamePlacement(t *rapid.T, ranks []*divergingRank) {
	var places [2][]Range
	for i, r := range ranks {
		for _, block := range r.live {
			places[i] = append(places[i], rangeOf(block))
			if got, err := r.core.LiveBlock(block.Handle); err != nil || got != block {
				t.Fatalf("rank %d: LiveBlock = %+v, %v; want %+v", i, got, err, block)
			}
		}
	}

	if diff := cmp.Diff(places[0], places[1]); diff != "" {
		t.Fatalf("placements differ (-rank 0 +rank 1):\n%s", diff)
	}

	stats0, stats1 := ranks[0].core.Stats(), ranks[1].core.Stats()
	if stats0.Mapped != stats1.Mapped || stats0.Live != stats1.Live {
		t.Fatalf("rank 0 has counters %+v, rank 1 %+v; want the same Mapped and Live", stats0, stats1)
	}
}

func TestBlockLiveOnOneRankIsConflict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := newDivergingRanks(t)
		stepTogether(t, ranks)
		const stream = 0
		ranks[1].alloc(t, 5*kib, stream)
		extra := ranks[1].live[len(ranks[1].live)-1]
		_, conflict := commonLayout(t, ranks)
		if conflict == nil || conflict.Range != rangeOf(extra) {
			t.Fatalf("CommonLayout returned conflict %+v, want one at %+v", conflict, rangeOf(extra))
		}
	})
}

// A freed block is deferred while another stream may still use it. It is then neither live nor
// free, so the ranks cannot agree on a layout.
func TestRebuildRefusesDeferredBlocks(t *testing.T) {
	pair := newRanks(t, Config{First: mib})
	r := &pair[0]
	const owner, user = 0, 1 // streams
	r.alloc(t, kib, owner)
	if err := r.core.Use(r.live[0].Handle, user); err != nil {
		t.Fatal(err)
	}

	r.free(t, 0)
	if _, err := r.core.Inventory(); !errors.Is(err, ErrDeferred) {
		t.Errorf("Inventory returned error %v, want ErrDeferred", err)
	}

	if _, err := r.core.Rebuild(Arrangement{}); !errors.Is(err, ErrDeferred) {
		t.Errorf("Rebuild returned error %v, want ErrDeferred", err)
	}
}
