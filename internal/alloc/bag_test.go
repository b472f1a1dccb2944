package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestBlocksOfOneSizeAreAllocatedByPosition allocates and frees random blocks of one size, of
// which up to 2,000 are free. Each Alloc must return the free block with the lowest offset.
func TestBlocksOfOneSizeAreAllocatedByPosition(t *testing.T) {
	const size, count = 4096, 4000
	const stream = 0
	c := newCore(t, Default())
	all := make([]Block, count)
	for i := range all {
		all[i] = mustAlloc(t, c, size, stream)
	}
	// The test uses the blocks with odd indexes. Those with even indexes stay live until the end, so
	// that free blocks do not merge.
	random := rand.New(rand.NewPCG(5, 6))
	var freeOffsets []int64         // sorted
	liveBlocks := map[int64]Block{} // by offset
	offsets := make([]int64, 0, count/2)
	for i := 1; i < count; i += 2 {
		liveBlocks[all[i].Offset] = all[i]
		offsets = append(offsets, all[i].Offset)
	}
	for step := range 20_000 {
		// In turn, 30% and 70% of 2,500 steps allocate a block. The others free a block if the one
		// that they select is live.
		allocTenths := 3
		if step/2500%2 == 1 {
			allocTenths = 7
		}
		if len(freeOffsets) > 0 && random.IntN(10) < allocTenths {
			block := mustAlloc(t, c, size, stream)
			if want := freeOffsets[0]; block.Offset != want {
				t.Fatalf("step %d: got offset %d, want the lowest free, %d", step, block.Offset, want)
			}
			liveBlocks[block.Offset] = block
			freeOffsets = freeOffsets[1:]
		} else if block, ok := liveBlocks[offsets[random.IntN(len(offsets))]]; ok {
			if _, err := c.Free(block); err != nil {
				t.Fatal(err)
			}
			delete(liveBlocks, block.Offset)
			i, _ := slices.BinarySearch(freeOffsets, block.Offset)
			freeOffsets = slices.Insert(freeOffsets, i, block.Offset)
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

// TestBagsReuseKeyArrays frees many blocks of one size after another. The arrays of keys for the
// free blocks of a size must be used again for other sizes.
func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	// allocAndFree allocates blocks and frees first every other one, so that all of these are free
	// blocks of the given size at the same time.
	allocAndFree := func(size int64) {
		const freeCount = 2000
		all := make([]Block, 2*freeCount)
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
	allocAndFree(Unit)
	keysBefore := len(c.keys)
	for units := int64(2); units < 20; units++ {
		allocAndFree(units * Unit)
	}
	if added := len(c.keys) - keysBefore; added > keysBefore {
		t.Errorf("18 more sizes added %d keys, want at most %d", added, keysBefore)
	}
}
