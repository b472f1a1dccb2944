package alloc

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// tlsf implements TLSF (two-level segregated fit) over one segment, for comparison. Sizes between
// two powers of two are a row of a table. Its 32 columns are ranges of these sizes. Each range has
// a stack of free blocks. Requests are rounded up to the next range. tlsf has no counters, handle
// checks or streams.
//
// A block is identified by its index in blocks, and 0 means none.
type tlsf struct {
	blocks  []tlsfBlock
	vacant  int32         // first unused element of blocks; tlsfBlock.next leads to the others
	summary uint64        // the bit of a row is set if one of its stacks is not empty
	words   [64]uint32    // by row: the bit of a column is set if its stack is not empty
	heads   [64][32]int32 // by row and column: the top of the stack
}

type tlsfBlock struct {
	position, units uint64 // in the segment, both in units of 512 bytes
	prev, next      int32  // neighbors in the segment
	before, after   int32  // neighbors in the stack of the range; the top has none before
	free            bool
	_               [24]byte // pads the record to a cache line
}

// newTLSF returns an allocator whose segment is one free block, block 1.
func newTLSF(units uint64) *tlsf {
	t := &tlsf{blocks: make([]tlsfBlock, 2, 1<<16)}
	t.blocks[1].units = units
	t.insert(1)
	return t
}

// tlsfRange returns the range of a size. Row 0 has a column for each size below 32. In other rows,
// the column is given by the 5 bits after the highest one. Each &63 saves a check of the index or
// the shift.
func tlsfRange(units uint64) (row, column int) {
	if units < 32 {
		return 0, int(units)
	}

	log := bits.Len64(units) - 1
	return (log - 4) & 63, int(units>>((log-5)&63)) & 31
}

// insert pushes a free block to the stack of its range.
func (t *tlsf) insert(id int32) {
	b := &t.blocks[id]
	row, column := tlsfRange(b.units)
	head := &t.heads[row][column]
	b.free = true
	b.before = 0
	b.after = *head
	t.blocks[*head].before = id
	*head = id
	t.words[row] |= 1 << column
	t.summary |= 1 << row
}

// remove takes a block, which is now used, out of the stack of its range.
func (t *tlsf) remove(id int32) {
	b := &t.blocks[id]
	b.free = false
	t.blocks[b.after].before = b.before
	if b.before != 0 {
		t.blocks[b.before].after = b.after
		return
	}

	row, column := tlsfRange(b.units)
	t.heads[row][column] = b.after
	if b.after != 0 {
		return
	}

	// The stack is empty now, and perhaps all stacks of the row.
	t.words[row] &^= 1 << column
	if t.words[row] == 0 {
		t.summary &^= 1 << row
	}
}

// find returns a block from the lowest nonempty range in which every block is large enough, or 0.
func (t *tlsf) find(units uint64) int32 {
	if units >= 32 { // round up to the next range
		units += 1<<((bits.Len64(units)-6)&63) - 1
	}

	row, column := tlsfRange(units)
	word := t.words[row] >> column << column // this column and those after it
	if word == 0 {
		summary := t.summary &^ (2<<row - 1) // rows after this one
		if summary == 0 {
			return 0
		}

		row = bits.TrailingZeros64(summary) & 63
		word = t.words[row]
	}

	return t.heads[row][bits.TrailingZeros32(word)&31]
}

// alloc returns a block for a size in bytes, or 0 if no free block is large enough. It splits off
// the rest of a larger block.
func (t *tlsf) alloc(size int64) int32 {
	units := uint64(size+Unit-1) >> unitShift
	id := t.find(units)
	if id == 0 {
		return 0
	}

	t.remove(id)
	if t.blocks[id].units == units {
		return id
	}

	rest := t.vacant
	if rest == 0 {
		rest = int32(len(t.blocks))
		t.blocks = append(t.blocks, tlsfBlock{})
	} else {
		t.vacant = t.blocks[rest].next
	}

	b, r := &t.blocks[id], &t.blocks[rest]
	r.position = b.position + units
	r.units = b.units - units
	r.prev = id
	r.next = b.next
	t.blocks[b.next].prev = rest
	b.next = rest
	b.units = units
	t.insert(rest)
	return id
}

// free frees a block, and merges it with its free neighbors.
func (t *tlsf) free(id int32) {
	if next := t.blocks[id].next; next != 0 && t.blocks[next].free {
		t.remove(next)
		t.absorb(id, next)
	}

	if prev := t.blocks[id].prev; prev != 0 && t.blocks[prev].free {
		t.remove(prev)
		t.absorb(prev, id)
		id = prev
	}

	t.insert(id)
}

// absorb adds the next neighbor of a block to it. Neither may be in a stack.
func (t *tlsf) absorb(id, nextID int32) {
	b, next := &t.blocks[id], &t.blocks[nextID]
	b.units += next.units
	b.next = next.next
	t.blocks[next.next].prev = id
	next.next = t.vacant
	t.vacant = nextID
}

// BenchmarkTLSF does the same as BenchmarkPairInEmptyPool ("pair") and BenchmarkRandom ("random").
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
		// Prepare the blocks as newUsedCore does.
		random := rand.New(rand.NewPCG(1, 2))
		blocks := make([]int32, 10_000)
		for i := range blocks {
			blocks[i] = t.alloc(drawBlockSize(random))
		}

		for range 10 * len(blocks) {
			i := random.IntN(len(blocks))
			t.free(blocks[i])
			blocks[i] = t.alloc(drawBlockSize(random))
		}

		toFree, sizes := randomDraws(len(blocks))
		for i := 0; b.Loop(); i++ {
			freed := toFree[i%drawCount]
			t.free(blocks[freed])
			blocks[freed] = t.alloc(sizes[i%drawCount])
		}
	})
}
