package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBlocksOfOneSizeAreAllocatedByPosition keeps up to 2,000 free blocks of one size. It allocates
// and frees random blocks, and finally merges all of them.
func TestBlocksOfOneSizeAreAllocatedByPosition(t *testing.T) {
	const size, count = 4096, 4000
	c := newCore(t, Default())
	all := make([]Block, count)
	for i := range all {
		all[i] = mustAlloc(t, c, size, 0)
	}
	// The even blocks stay live until the end, to keep the odd ones from merging.
	random := rand.New(rand.NewPCG(5, 6))
	var free []int64
	held := map[int64]Block{}
	for i := 1; i < count; i += 2 {
		held[all[i].Offset] = all[i]
	}
	offsets := make([]int64, 0, len(held))
	for i := 1; i < count; i += 2 {
		offsets = append(offsets, all[i].Offset)
	}
	for step := range 20_000 {
		// Phases of 2,500 steps that mostly free alternate with phases that mostly allocate.
		allocTenths := 3 + step/2500%2*4
		if len(free) > 0 && random.IntN(10) < allocTenths {
			v := mustAlloc(t, c, size, 0)
			if want := free[0]; v.Offset != want {
				t.Fatalf("step %d: got offset %d, want the lowest free one, %d", step, v.Offset, want)
			}
			held[v.Offset] = v
			free = free[1:]
		} else if v, ok := held[offsets[random.IntN(len(offsets))]]; ok {
			if _, err := c.Free(v); err != nil {
				t.Fatal(err)
			}
			delete(held, v.Offset)
			i, _ := slices.BinarySearch(free, v.Offset)
			free = slices.Insert(free, i, v.Offset)
		}
		if step%500 == 0 {
			if err := c.Verify(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
	for i := 0; i < count; i += 2 {
		if _, err := c.Free(all[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Verify(); err != nil {
		t.Fatal(err)
	}
}

func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	const count = 2000
	round := func(size int64) {
		all := make([]Block, 2*count)
		for i := range all {
			all[i] = mustAlloc(t, c, size, 0)
		}
		for half := range 2 {
			for i := half; i < len(all); i += 2 {
				if _, err := c.Free(all[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Verify(); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(Unit)
	keys := len(c.keys)
	for size := int64(2); size < 20; size++ {
		round(size * Unit)
	}
	if grown := len(c.keys) - keys; grown > keys {
		t.Errorf("18 more sizes added %d keys, want at most %d", grown, keys)
	}
}
