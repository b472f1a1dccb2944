package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Among free blocks of one size, Alloc returns the one with the lowest offset.
func TestBlocksOfOneSizeAreAllocatedByPosition(t *testing.T) {
	const (
		stepCount      = 20_000
		phaseSteps     = 2500 // steps that mostly free, before as many that mostly allocate
		verifyInterval = 500  // steps between calls of Verify
	)
	r := newReallocator(t)
	for step := range stepCount {
		allocPercent := 30
		isAllocPhase := step/phaseSteps%2 == 1
		if isAllocPhase {
			allocPercent = 70
		}

		hasFreeBlock := len(r.freeOffsets) > 0
		if hasFreeBlock && r.random.IntN(100) < allocPercent {
			r.allocLowest(step)
		} else {
			r.freeRandom()
		}

		if step%verifyInterval == 0 {
			if err := r.core.Verify(); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}

	r.freeSeparators()
	if err := r.core.Verify(); err != nil {
		t.Fatal(err)
	}
}

// Arbitrary values: a bag holds the free blocks of one stream and size.
const (
	bagStream    = 0
	bagBlockSize = 4096
)

// reallocator allocates and frees blocks between separators, which stay live to prevent merges.
type reallocator struct {
	t           *testing.T
	core        *Core
	random      *rand.Rand
	separators  []Block
	offsets     []int64         // all offsets of other blocks
	live        map[int64]Block // live blocks, by offset; without separators
	freeOffsets []int64         // offsets of free blocks, sorted
}

func newReallocator(t *testing.T) *reallocator {
	t.Helper()
	const pairCount = 2000
	r := &reallocator{
		t:      t,
		core:   newCore(t, Default()),
		random: rand.New(rand.NewPCG(5, 6)), // arbitrary seed
		live:   map[int64]Block{},
	}
	for range pairCount {
		separator := mustAlloc(t, r.core, bagBlockSize, bagStream)
		r.separators = append(r.separators, separator)
		block := mustAlloc(t, r.core, bagBlockSize, bagStream)
		r.offsets = append(r.offsets, block.Offset)
		r.live[block.Offset] = block
	}

	return r
}

func (r *reallocator) allocLowest(step int) {
	r.t.Helper()
	block := mustAlloc(r.t, r.core, bagBlockSize, bagStream)
	if want := r.freeOffsets[0]; block.Offset != want {
		r.t.Fatalf("step %d: got offset %d, want the lowest free, %d", step, block.Offset, want)
	}

	r.live[block.Offset] = block
	r.freeOffsets = r.freeOffsets[1:]
}

// freeRandom does nothing if it draws a block that is free already.
func (r *reallocator) freeRandom() {
	r.t.Helper()
	offset := r.offsets[r.random.IntN(len(r.offsets))]
	block, isLive := r.live[offset]
	if !isLive {
		return
	}

	mustFreeAll(r.t, r.core, block)
	delete(r.live, offset)
	i, _ := slices.BinarySearch(r.freeOffsets, offset)
	r.freeOffsets = slices.Insert(r.freeOffsets, i, offset)
}

func (r *reallocator) freeSeparators() {
	r.t.Helper()
	mustFreeAll(r.t, r.core, r.separators...)
}

func mustFreeAll(tb testing.TB, c *Core, blocks ...Block) {
	tb.Helper()
	for _, block := range blocks {
		if _, err := c.Free(block); err != nil {
			tb.Fatal(err)
		}
	}
}

// A Core keeps the free blocks of each size in a bag, and reuses the key arrays of empty bags.
func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	fillAndEmptyBag(t, c, Unit)
	keysBefore := len(c.keys)
	const moreSizes = 18 // arbitrary; without reuse, each size would add keysBefore keys
	for i := range int64(moreSizes) {
		fillAndEmptyBag(t, c, (2+i)*Unit)
	}

	if added := len(c.keys) - keysBefore; added > keysBefore {
		t.Errorf("%d more sizes added %d keys, want at most %d", moreSizes, added, keysBefore)
	}
}

// fillAndEmptyBag frees every second block, which fills a bag. It then frees the other blocks, so
// that all blocks merge and leave the bag.
func fillAndEmptyBag(t *testing.T, c *Core, size int64) {
	t.Helper()
	const freeCount = 2000
	var toFree []Block
	var separators []Block
	for range freeCount {
		toFree = append(toFree, mustAlloc(t, c, size, bagStream))
		separators = append(separators, mustAlloc(t, c, size, bagStream))
	}

	mustFreeAll(t, c, toFree...)
	if err := c.Verify(); err != nil {
		t.Fatal(err)
	}

	mustFreeAll(t, c, separators...)
	if err := c.Verify(); err != nil {
		t.Fatal(err)
	}
}
