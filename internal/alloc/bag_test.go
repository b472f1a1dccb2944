package alloc

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Suppose that 2,000 blocks of 4 KiB are free. Alloc of 4 KiB must return the one with the lowest
// offset. To find it, a Core keeps a bag for each size: a set with one key for each free block of
// the size. The keys of a bag are in an array. The arrays of all bags are parts of Core.keys.

// TestBlocksOfOneSizeAreAllocatedByPosition allocates and frees random blocks of one size. Each
// Alloc must return the free block with the lowest offset.
func TestBlocksOfOneSizeAreAllocatedByPosition(t *testing.T) {
	const (
		stepCount   = 20_000
		phaseSteps  = 2500 // number of steps in a phase
		verifySteps = 500  // number of steps from a Verify to the next
	)
	r := newReallocator(t)
	for step := range stepCount {
		// In the first phase, most steps free blocks, so that many are free. In the next phase, most
		// steps allocate blocks. The other phases alternate like these.
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

		if step%verifySteps == 0 {
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

// reallocator frees and allocates blocks of bagBlockSize. A separator, a block that stays live, is
// between any two of them. Therefore free blocks do not merge.
type reallocator struct {
	t           *testing.T
	core        *Core
	random      *rand.Rand
	separators  []Block
	offsets     []int64         // of all blocks except separators
	live        map[int64]Block // the live ones of these blocks, by offset
	freeOffsets []int64         // of the free ones, sorted
}

// newReallocator allocates 2,000 blocks and as many separators. All are in one segment.
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

// allocLowest allocates a block, and checks that it has the lowest of the free offsets.
func (r *reallocator) allocLowest(step int) {
	r.t.Helper()
	block := mustAlloc(r.t, r.core, bagBlockSize, bagStream)
	if want := r.freeOffsets[0]; block.Offset != want {
		r.t.Fatalf("step %d: got offset %d, want the lowest free, %d", step, block.Offset, want)
	}

	r.live[block.Offset] = block
	r.freeOffsets = r.freeOffsets[1:]
}

// freeRandom chooses a random block, and frees it if it is live.
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

// freeSeparators frees all separators, so that neighboring free blocks merge.
func (r *reallocator) freeSeparators() {
	r.t.Helper()
	mustFreeAll(r.t, r.core, r.separators...)
}

// mustFreeAll frees blocks. An error ends the test.
func mustFreeAll(t *testing.T, c *Core, blocks ...Block) {
	t.Helper()
	for _, block := range blocks {
		if _, err := c.Free(block); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBagsReuseKeyArrays fills and empties the bags of 19 sizes, one after another. For the later
// sizes, the Core must reuse the key arrays of the earlier ones.
func TestBagsReuseKeyArrays(t *testing.T) {
	c := newCore(t, Default())
	fillAndEmptyBag(t, c, Unit)
	keysBefore := len(c.keys)
	const maxUnits = 19
	for units := int64(2); units <= maxUnits; units++ {
		fillAndEmptyBag(t, c, units*Unit)
	}

	// Without reuse, each of the 18 sizes would add as many keys as the first.
	if added := len(c.keys) - keysBefore; added > keysBefore {
		t.Errorf("18 more sizes added %d keys, want at most %d", added, keysBefore)
	}
}

// fillAndEmptyBag makes 2,000 blocks of a size free at the same time, separated by live blocks.
// Then it frees the live blocks too, so that all blocks merge.
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
