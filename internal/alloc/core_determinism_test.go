package alloc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// rank simulates a rank with a driver that chooses the addresses of segments.
type rank struct {
	core      *Core
	addresses []uint64 // of future segments
	live      []Block  // in the order of allocation
}

// alloc allocates a block, from a new segment if necessary, and appends it to r.live.
func (r *rank) alloc(t rapid.TB, size int64, stream Stream) {
	block, growth, err := r.core.Alloc(size, stream)
	if err == nil && growth.Bytes > 0 {
		address := r.addresses[0]
		r.addresses = append(r.addresses[1:], address)
		if _, err = r.core.AddSegment(growth, address); err == nil {
			block, _, err = r.core.Alloc(size, stream)
		}
	}

	if err != nil {
		t.Fatal(err)
	}

	r.live = append(r.live, block)
}

// free frees r.live[i] and removes it from the list.
func (r *rank) free(t rapid.TB, i int) {
	if _, err := r.core.Free(r.live[i]); err != nil {
		t.Fatal(err)
	}

	r.live = append(r.live[:i], r.live[i+1:]...)
}

// newRanks returns two ranks whose drivers assign segment addresses in opposite orders: ascending
// on rank 0, and descending on rank 1.
func newRanks(tb rapid.TB, config Config) (ranks [2]rank) {
	const addressCount = 1 << 10
	for i := range ranks {
		c, err := New(config)
		if err != nil {
			tb.Fatal(err)
		}

		ranks[i].core = c
		for k := range uint64(addressCount) {
			address := (k + 1) << 36 // far apart, because segments must not overlap
			ranks[i].addresses = append(ranks[i].addresses, address)
		}
	}

	slices.Reverse(ranks[1].addresses)
	return ranks
}

// The ranks of a job must place blocks identically, although each driver chooses other addresses.
func TestPlacementDoesNotDependOnSegmentAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Config{First: mib, Granularity: 64 * kib}
		config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing")) // one of two ways
		pair := newRanks(t, config)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			liveCount := len(pair[0].live)
			// One in three steps frees a block, if there is one.
			if liveCount > 0 && rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
				i := rapid.IntRange(0, liveCount-1).Draw(t, "victim")
				pair[0].free(t, i)
				pair[1].free(t, i)
				continue
			}

			size := rapid.Int64Range(1, 2*mib).Draw(t, "size")
			stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
			pair[0].alloc(t, size, stream)
			pair[1].alloc(t, size, stream)
			block0, block1 := pair[0].live[liveCount], pair[1].live[liveCount]
			if block0 != block1 {
				t.Fatalf("rank 0 placed %+v, but rank 1 placed %+v", block0, block1)
			}
		}
	})
}

// placeAfterReuse fills two segments on each of two ranks, frees the first block of each segment,
// and then allocates a block of the same size. It returns the last block of each rank.
func placeAfterReuse(tb testing.TB, policy Policy) [2]Block {
	tb.Helper()
	const stream = 0
	pair := newRanks(tb, Config{Policy: policy, First: 2 * mib})
	var placed [2]Block
	for i := range pair {
		r := &pair[i]
		for range 4 { // two blocks per segment
			r.alloc(tb, mib, stream)
		}

		r.free(tb, 0)
		r.free(tb, 1) // the third block, because the first is no longer in r.live
		r.alloc(tb, mib, stream)
		placed[i] = r.live[2]
	}

	return placed
}

// Both segments have a free block of the right size. AddressOrder prefers the lower address, which
// is that of the first segment on rank 0, and that of the second segment on rank 1.
func TestAddressOrderDivergesAndCreationOrderDoesNot(t *testing.T) {
	if got := placeAfterReuse(t, AddressOrder); got[0].Segment != 0 || got[1].Segment != 1 {
		t.Errorf("AddressOrder chose segments %d and %d; want 0 and 1",
			got[0].Segment, got[1].Segment)
	}

	if got := placeAfterReuse(t, CreationOrder); got[0] != got[1] || got[0].Segment != 0 {
		t.Errorf("CreationOrder placed %+v and %+v; want equal blocks in segment 0", got[0], got[1])
	}
}
