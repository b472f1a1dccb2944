package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A bag is the set of the free blocks of one size, from which an Alloc takes the first by position.
//
// TestBlocksOfOneSizeAreAllocatedByPosition allocates and frees random blocks of one size. Each
// Alloc must return the free block with the lowest offset.
func TestBlocksOfOneSizeAreAllocatedByPosition(t *testing.T) {
	const size, count = 4096, 4000
	const stream = 0
	c := newCore(t, Default())
	all := make([]Block, count) // in the order of their offsets, in one segment
	for i := range all {
		all[i] = mustAlloc(t, c, size, stream)
	}

	// The test uses the 2,000 blocks with odd indexes. Those with even indexes stay live until the
	// end, so that free blocks do not merge.
	random := rand.New(rand.NewPCG(5, 6))
	var freeOffsets []int64         // sorted
	liveBlocks := map[int64]Block{} // by offset
	var offsets []int64             // of all blocks that the test uses
	for i := 1; i < count; i += 2 {
		liveBlocks[all[i].Offset] = all[i]
		offsets = append(offsets, all[i].Offset)
	}

	for step := range 20_000 {
		// In 2,500 steps, most steps free blocks, so that many are free. In the next 2,500 steps, most
		// allocate blocks. A step that would free a block does nothing if the block is free.
		allocPercent := 30
		if step/2500%2 == 1 {
			allocPercent = 70
		}

		if len(freeOffsets) > 0 && random.IntN(100) < allocPercent {
			block := mustAlloc(t, c, size, stream)
			if want := freeOffsets[0]; block.Offset != want {
				t.Fatalf("step %d: got offset %d, want the lowest free, %d", step, block.Offset, want)
			}

			liveBlocks[block.Offset] = block
			freeOffsets = freeOffsets[1:]
		} else {
			offset := offsets[random.IntN(len(offsets))]
			if block, isLive := liveBlocks[offset]; isLive {
				if _, err := c.Free(block); err != nil {
					t.Fatal(err)
				}

				delete(liveBlocks, offset)
				i, _ := slices.BinarySearch(freeOffsets, offset)
				freeOffsets = slices.Insert(freeOffsets, i, offset)
			}
		}

		if step%500 == 0 {
			if err := c.Verify(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}

	for i := 0; i < count; i += 2 { // now blocks merge
		if _, err := c.Free(all[i]); err != nil {
			t.Fatal(err)
		}
	}

	if err := c.Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestBagsReuseKeyArrays fills and empties a bag for one size after another. Each bag has an array
// of keys, which is a part of Core.keys. Arrays must be used again for other sizes.
func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	// allocAndFree allocates blocks and frees first those with even indexes, so that all of these
	// are free blocks of the given size at the same time. Then it frees the others, and all merge.
	allocAndFree := func(size int64) {
		const freeCount = 2000
		const stream = 0
		all := make([]Block, 2*freeCount)
		for i := range all {
			all[i] = mustAlloc(t, c, size, stream)
		}

		for firstIndex := range 2 {
			for i := firstIndex; i < len(all); i += 2 {
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

	// Without reuse, each of the 18 sizes would add as many keys as the first.
	if added := len(c.keys) - keysBefore; added > keysBefore {
		t.Errorf("18 more sizes added %d keys, want at most %d", added, keysBefore)
	}
}
