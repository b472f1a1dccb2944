package alloc

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// TLSF (two-level segregated fit) is a well-known algorithm for placing blocks. The benchmark
// compares it with the one of this package.
//
// TLSF counts sizes in units of 512 bytes, and divides them into ranges, in a table of rows and
// columns. A row contains the sizes from one power of two to the next. Its 32 columns divide them
// into ranges of the same length. For example, one row has the sizes from 64 to 127, and the ranges
// 64 to 65, 66 to 67 and so on. Each range has a stack of free blocks.
//
// Suppose that 65 units are requested. The stack of the range 64 to 65 may have a block of 65
// units, but its top may have only 64. Therefore, TLSF takes the top of the next stack that is not
// empty. Each block there is large enough, so it need not search the stack.

// tlsf implements TLSF over one segment. Unlike a Core, it has no counters, handle checks or
// streams.
//
// A block is identified by its index in blocks, called id. The id 0 means none.
type tlsf struct {
	blocks []tlsfBlock
	vacant int32 // first unused element of blocks; tlsfBlock.next leads to the others

	heads   [64][32]int32 // by row and column: the top of the stack
	words   [64]uint32    // by row: the bit of a column is set if its stack is not empty
	summary uint64        // the bit of a row is set if one of its stacks is not empty
}

type tlsfBlock struct {
	position uint64 // in the segment, in units
	units    uint64 // the size
	prev     int32  // block before this one in the segment
	next     int32  // block after this one in the segment
	above    int32  // block above this one in the stack
	below    int32  // block below this one in the stack
	isFree   bool
	_        [24]byte // pads the record to a cache line
}

// newTLSF returns an allocator whose segment is one free block, block 1.
func newTLSF(units uint64) *tlsf {
	t := &tlsf{blocks: make([]tlsfBlock, 2, 1<<16)}
	t.blocks[1].units = units
	t.push(1)
	return t
}

// tlsfRange returns the row and column of a size. Row 0 has a column for each size below 32. In the
// other rows, the column is given by the 5 bits after the highest one: 5 bits count 32 columns.
func tlsfRange(units uint64) (row, column int) {
	if units < 32 {
		return 0, int(units)
	}

	log := bits.Len64(units) - 1 // position of the highest bit
	// Each &63, here and below, saves the compiler's check of an index or shift.
	return (log - 4) & 63, int(units>>((log-5)&63)) & 31
}

// push marks a block as free, and pushes it to the stack of its range.
func (t *tlsf) push(id int32) {
	b := &t.blocks[id]
	row, column := tlsfRange(b.units)
	head := &t.heads[row][column]
	b.isFree = true
	b.above = 0
	b.below = *head
	t.blocks[*head].above = id // has no effect if the stack was empty, because block 0 is unused
	*head = id
	t.words[row] |= 1 << column
	t.summary |= 1 << row
}

// remove marks a block as used, and removes it from the stack of its range.
func (t *tlsf) remove(id int32) {
	b := &t.blocks[id]
	b.isFree = false
	t.blocks[b.below].above = b.above
	if b.above != 0 {
		t.blocks[b.above].below = b.below
		return
	}

	// The block was the top of the stack.
	row, column := tlsfRange(b.units)
	t.heads[row][column] = b.below
	if b.below != 0 {
		return
	}

	// The stack is empty now. Perhaps all stacks of the row are.
	t.words[row] &^= 1 << column
	if t.words[row] == 0 {
		t.summary &^= 1 << row
	}
}

// find returns a block from the first nonempty range in which each block is large enough. It
// returns 0 if all these ranges are empty.
func (t *tlsf) find(units uint64) int32 {
	if units >= 32 {
		// Round up to the start of a range. The length of the range is 1<<(log-5), with log as in
		// tlsfRange.
		units += 1<<((bits.Len64(units)-6)&63) - 1
	}

	row, column := tlsfRange(units)
	word := t.words[row] >> column << column // only this column and those after it
	if word == 0 {
		summary := t.summary &^ (2<<row - 1) // only the rows after this one
		if summary == 0 {
			return 0
		}

		row = bits.TrailingZeros64(summary) & 63
		word = t.words[row]
	}

	return t.heads[row][bits.TrailingZeros32(word)&31]
}

// alloc returns a block for a size in bytes, or 0 if find returns none. If the block is too large,
// alloc splits off the rest as a free block.
func (t *tlsf) alloc(size int64) int32 {
	units := uint64(size+Unit-1) >> unitShift // rounded up
	id := t.find(units)
	if id == 0 {
		return 0
	}

	t.remove(id)
	if t.blocks[id].units == units {
		return id
	}

	// Find an element for the rest.
	restID := t.vacant
	if restID == 0 {
		restID = int32(len(t.blocks))
		t.blocks = append(t.blocks, tlsfBlock{})
	} else {
		t.vacant = t.blocks[restID].next
	}

	b := &t.blocks[id]
	rest := &t.blocks[restID]
	rest.position = b.position + units
	rest.units = b.units - units
	rest.prev = id
	rest.next = b.next
	t.blocks[b.next].prev = restID
	b.next = restID
	b.units = units
	t.push(restID)
	return id
}

// free frees a block, and merges it with its free neighbors in the segment.
func (t *tlsf) free(id int32) {
	next := t.blocks[id].next
	if next != 0 && t.blocks[next].isFree {
		t.remove(next)
		t.absorbNext(id)
	}

	prev := t.blocks[id].prev
	if prev != 0 && t.blocks[prev].isFree {
		t.remove(prev)
		t.absorbNext(prev)
		id = prev
	}

	t.push(id)
}

// absorbNext merges a block with the next one in the segment. Neither may be in a stack.
func (t *tlsf) absorbNext(id int32) {
	b := &t.blocks[id]
	nextID := b.next
	next := &t.blocks[nextID]
	b.units += next.units
	b.next = next.next
	t.blocks[next.next].prev = id

	// The element of the next block is unused now.
	next.next = t.vacant
	t.vacant = nextID
}

// BenchmarkTLSF measures TLSF in two ways. "pair" corresponds to BenchmarkPairInEmptyPool, and
// "random" to BenchmarkRandom.
func BenchmarkTLSF(b *testing.B) {
	const segmentUnits = 1 << 25 // 16 GiB, more than the blocks need
	b.Run("pair", func(b *testing.B) {
		t := newTLSF(segmentUnits)
		for b.Loop() {
			t.free(t.alloc(benchSize))
		}
	})
	b.Run("random", func(b *testing.B) {
		t := newTLSF(segmentUnits)
		const liveCount = 10_000
		blocks := useTLSF(t, liveCount)
		toFree, sizes := randomDraws(liveCount)
		for i := 0; b.Loop(); i++ {
			freed := toFree[i%drawCount]
			t.free(blocks[freed])
			blocks[freed] = t.alloc(sizes[i%drawCount])
		}
	})
}

// useTLSF allocates the given number of blocks, and then replaces each ten times on average, in
// random order. newUsedCore does the same with a Core.
func useTLSF(t *tlsf, liveCount int) []int32 {
	random := rand.New(rand.NewPCG(1, 2))
	blocks := make([]int32, liveCount)
	for i := range blocks {
		blocks[i] = t.alloc(drawBlockSize(random))
	}

	for range 10 * liveCount {
		i := random.IntN(liveCount)
		t.free(blocks[i])
		blocks[i] = t.alloc(drawBlockSize(random))
	}

	return blocks
}
