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
		phaseSteps     = 2500 // phases that mostly free and phases that mostly allocate alternate
		verifyInterval = 500  // steps
	)
	r := newReallocator(t)
	for step := range stepCount {
		allocPercent := 30
		isAllocPhase := step/phaseSteps%2 == 1
		if isAllocPhase {
			allocPercent = 70
		}

		isAlloc := len(r.freeOffsets) > 0 && r.random.IntN(100) < allocPercent
		if isAlloc {
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
	offsets     []int64         // of all blocks except separators
	live        map[int64]Block // by offset; without separators
	freeOffsets []int64         // sorted
}

func newReallocator(t *testing.T) *reallocator {
	t.Helper()
	const pairCount = 2000
	r := &reallocator{
		t: t, core: newCore(t, Default()),
		random: rand.New(rand.NewPCG(5, 6)),
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

func mustFreeAll(t *testing.T, c *Core, blocks ...Block) {
	t.Helper()
	for _, block := range blocks {
		if _, err := c.Free(block); err != nil {
			t.Fatal(err)
		}
	}
}

// A Core keeps the free blocks of each size in a bag, and reuses the key arrays of emptied bags.
func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	fillAndEmptyBag(t, c, Unit)
	keysBefore := len(c.keys)
	const moreSizes = 18 // without reuse, each would add keysBefore keys
	for i := range int64(moreSizes) {
		fillAndEmptyBag(t, c, (2+i)*Unit)
	}

	if added := len(c.keys) - keysBefore; added > keysBefore {
		t.Errorf("%d more sizes added %d keys, want at most %d", moreSizes, added, keysBefore)
	}
}

// fillAndEmptyBag frees blocks between live separators, and then the separators, so that all merge.
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
