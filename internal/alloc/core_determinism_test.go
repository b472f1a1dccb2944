package alloc

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type rank struct {
	core      *Core
	addresses []uint64 // for the next segments
	live      []Block  // in the order of allocation
}

// newRanks returns two ranks. Rank 0 maps segments at ascending addresses, and rank 1 at descending
// ones.
func newRanks(tb rapid.TB, config Config) (ranks [2]rank) {
	const addressCount = 1 << 10 // more than a test needs
	const distance = 1 << 36     // bytes, more than the size of any segment
	for i := range ranks {
		c, err := New(config)
		if err != nil {
			tb.Fatal(err)
		}

		ranks[i].core = c
		for k := uint64(1); k <= addressCount; k++ {
			ranks[i].addresses = append(ranks[i].addresses, k*distance)
		}
	}

	slices.Reverse(ranks[1].addresses)
	return ranks
}

func (r *rank) alloc(t rapid.TB, size int64, stream Stream) {
	block, growth, err := r.core.Alloc(size, stream)
	if err != nil {
		t.Fatal(err)
	}

	needsSegment := growth.Bytes > 0
	if needsSegment {
		address := r.addresses[0]
		r.addresses = r.addresses[1:]
		_, err = r.core.AddSegment(growth, address)
		if err != nil {
			t.Fatal(err)
		}

		block, _, err = r.core.Alloc(size, stream)
		if err != nil {
			t.Fatal(err)
		}
	}

	r.live = append(r.live, block)
}

func (r *rank) free(t rapid.TB, i int) {
	if _, err := r.core.Free(r.live[i]); err != nil {
		t.Fatal(err)
	}

	r.live = append(r.live[:i], r.live[i+1:]...)
}

func TestPlacementDoesNotDependOnSegmentAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Config{First: mib, Granularity: 64 * kib}
		config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing")) // Geometric or Stepped
		ranks := newRanks(t, config)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			liveCount := len(ranks[0].live)
			freesBlock := liveCount > 0 && rapid.IntRange(0, 2).Draw(t, "kind") == 0
			if freesBlock {
				i := rapid.IntRange(0, liveCount-1).Draw(t, "victim")
				ranks[0].free(t, i)
				ranks[1].free(t, i)
				continue
			}

			size := rapid.Int64Range(1, 2*mib).Draw(t, "size")
			stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
			ranks[0].alloc(t, size, stream)
			ranks[1].alloc(t, size, stream)
			block0 := ranks[0].live[liveCount]
			block1 := ranks[1].live[liveCount]
			if block0 != block1 {
				t.Fatalf("rank 0 placed %+v, but rank 1 placed %+v", block0, block1)
			}
		}
	})
}

// If two segments have a free block of the requested size, AddressOrder prefers the segment with
// the lower address, and CreationOrder the older one. Only on rank 0 is this the same segment.
func TestAddressOrderDivergesAndCreationOrderDoesNot(t *testing.T) {
	got := placeAfterReuse(t, AddressOrder)
	if got[0].Segment != 0 || got[1].Segment != 1 {
		t.Errorf("AddressOrder chose segments %d and %d; want 0 and 1",
			got[0].Segment, got[1].Segment)
	}

	got = placeAfterReuse(t, CreationOrder)
	if got[0] != got[1] || got[0].Segment != 0 {
		t.Errorf("CreationOrder placed %+v and %+v; want equal blocks in segment 0", got[0], got[1])
	}
}

// placeAfterReuse fills two segments on each rank and frees the first block of each segment. It
// returns the block that each rank allocates next.
func placeAfterReuse(tb testing.TB, policy Policy) (last [2]Block) {
	tb.Helper()
	const stream = 0
	ranks := newRanks(tb, Config{Policy: policy, First: 2 * mib})
	for i := range ranks {
		r := &ranks[i]
		for range 4 { // two blocks per segment
			r.alloc(tb, mib, stream)
		}

		const oldest, secondOfThree = 0, 1
		r.free(tb, oldest)        // the first block of segment 0
		r.free(tb, secondOfThree) // the first block of segment 1
		r.alloc(tb, mib, stream)
		newest := len(r.live) - 1
		last[i] = r.live[newest]
	}

	return last
}
