package alloc

import (
	"testing"

	"pgregory.net/rapid"
)

// rank simulates a rank whose driver chooses the addresses of segments.
type rank struct {
	core      *Core
	addresses []uint64 // for future segments
	held      []Block
}

func (r *rank) alloc(t rapid.TB, size int64, stream Stream) {
	v, grow, err := r.core.Alloc(size, stream)
	if err == nil && grow.Bytes > 0 {
		address := r.addresses[0]
		r.addresses = append(r.addresses[1:], address)
		if _, err = r.core.AddSegment(grow, address); err == nil {
			v, _, err = r.core.Alloc(size, stream)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	r.held = append(r.held, v)
}

func (r *rank) free(t rapid.TB, i int) {
	if _, err := r.core.Free(r.held[i]); err != nil {
		t.Fatal(err)
	}
	r.held = append(r.held[:i], r.held[i+1:]...)
}

// newRanks returns two ranks whose drivers assign segment addresses in opposite orders.
func newRanks(tb rapid.TB, config Config) (ranks [2]rank) {
	const n = 1 << 10
	for i := range ranks {
		c, err := New(config)
		if err != nil {
			tb.Fatal(err)
		}
		ranks[i].core = c
		for k := range uint64(n) {
			if i == 1 {
				k = n - 1 - k
			}
			ranks[i].addresses = append(ranks[i].addresses, (k+1)<<36)
		}
	}
	return ranks
}

func TestPlacementDoesNotDependOnSegmentAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := Config{First: mib, Granularity: 64 * kib}
		config.Sizing = Sizing(rapid.IntRange(0, 1).Draw(t, "sizing"))
		pair := newRanks(t, config)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			live := len(pair[0].held)
			if live > 0 && rapid.IntRange(0, 2).Draw(t, "kind") == 0 {
				i := rapid.IntRange(0, live-1).Draw(t, "victim")
				pair[0].free(t, i)
				pair[1].free(t, i)
				continue
			}
			size := rapid.Int64Range(1, 2*mib).Draw(t, "size")
			stream := Stream(rapid.IntRange(0, 1).Draw(t, "stream"))
			pair[0].alloc(t, size, stream)
			pair[1].alloc(t, size, stream)
			if pair[0].held[live] != pair[1].held[live] {
				t.Fatalf("rank 0 placed %+v, rank 1 placed %+v", pair[0].held[live], pair[1].held[live])
			}
		}
	})
}

// placeAfterReuse fills two segments on each of two ranks and frees the first block of each
// segment. It returns the block that each rank allocates next, from one of these equally large
// blocks.
func placeAfterReuse(tb testing.TB, policy Policy) [2]Block {
	tb.Helper()
	pair := newRanks(tb, Config{Policy: policy, First: 2 * mib})
	var placed [2]Block
	for i := range pair {
		r := &pair[i]
		for range 4 {
			r.alloc(tb, mib, 0)
		}
		r.free(tb, 0)
		r.free(tb, 1)
		r.alloc(tb, mib, 0)
		placed[i] = r.held[2]
	}
	return placed
}

func TestAddressOrderDivergesAndCreationOrderDoesNot(t *testing.T) {
	if got := placeAfterReuse(t, AddressOrder); got[0].Segment != 0 || got[1].Segment != 1 {
		t.Errorf("AddressOrder chose segments %d and %d; want 0 and 1",
			got[0].Segment, got[1].Segment)
	}
	if got := placeAfterReuse(t, CreationOrder); got[0] != got[1] || got[0].Segment != 0 {
		t.Errorf("CreationOrder placed %+v and %+v; want segment 0 on both", got[0], got[1])
	}
}
