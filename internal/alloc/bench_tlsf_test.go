package alloc

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// A row of size ranges covers the sizes from one power of two to the next.
const (
	rowCount    = 64
	columnCount = 32 // number of ranges of equal length in a row
	columnLog   = 5  // log2 of columnCount
)

// tlsf implements two-level segregated fit (TLSF), for comparison, without the counters, handle
// checks and streams of a Core. Each size range has a stack of free blocks.
type tlsf struct {
	blocks        []tlsfBlock // by id; id 0 means none
	firstUnusedID int32       // head of a free list, linked by tlsfBlock.next

	tops         [rowCount][columnCount]int32 // ids of the top blocks of the stacks
	usedColumns  [rowCount]uint32             // bit set of the nonempty stacks of each row
	nonemptyRows uint64                       // bit set
}

type tlsfBlock struct {
	position uint64 // in units
	units    uint64
	prev     int32 // neighbors in the segment
	next     int32
	above    int32 // neighbors in the stack
	below    int32
	isFree   bool
	_        [24]byte // pads the record to a cache line
}

func newTLSF(units uint64) *tlsf {
	const firstID = 1
	t := &tlsf{blocks: make([]tlsfBlock, firstID+1, 1<<16)}
	t.blocks[firstID].units = units
	t.push(firstID)
	return t
}

// tlsfRange returns the row and column of a size. Row 0 has a column for each size below 32. In
// other rows, the 5 bits after the highest one are the column.
func tlsfRange(units uint64) (row, column int) {
	if units < columnCount {
		return 0, int(units)
	}

	log := bits.Len64(units) - 1 // at least 5
	rangeLog := log - columnLog  // log2 of the length of a range
	// The masks here and below avoid run-time checks of indexes and shifts.
	return (rangeLog + 1) & (rowCount - 1), int(units>>(rangeLog&63)) & (columnCount - 1)
}

func (t *tlsf) push(id int32) {
	b := &t.blocks[id]
	row, column := tlsfRange(b.units)
	top := &t.tops[row][column]
	b.isFree = true
	b.above = 0
	b.below = *top
	t.blocks[*top].above = id // changes the unused block 0 if the stack was empty
	*top = id
	t.usedColumns[row] |= 1 << column
	t.nonemptyRows |= 1 << row
}

func (t *tlsf) remove(id int32) {
	b := &t.blocks[id]
	b.isFree = false
	t.blocks[b.below].above = b.above
	if b.above != 0 {
		t.blocks[b.above].below = b.below
		return
	}

	row, column := tlsfRange(b.units)
	t.tops[row][column] = b.below
	if b.below != 0 {
		return
	}

	t.usedColumns[row] &^= 1 << column
	if t.usedColumns[row] == 0 {
		t.nonemptyRows &^= 1 << row
	}
}

// find returns a block from the first nonempty range whose blocks are all large enough, or 0.
func (t *tlsf) find(units uint64) int32 {
	if units >= columnCount { // round up to the start of a range
		log := bits.Len64(units) - 1
		rangeLength := uint64(1) << ((log - columnLog) & 63)
		units += rangeLength - 1
	}

	row, column := tlsfRange(units)
	columns := t.usedColumns[row] >> column << column // without lower columns
	if columns == 0 {
		rows := t.nonemptyRows &^ (2<<row - 1) // without this row and lower ones
		if rows == 0 {
			return 0
		}

		row = bits.TrailingZeros64(rows) & (rowCount - 1)
		columns = t.usedColumns[row]
	}

	column = bits.TrailingZeros32(columns) & (columnCount - 1)
	return t.tops[row][column]
}

// alloc returns the id of a block for size bytes, or 0.
func (t *tlsf) alloc(size int64) int32 {
	units := toUnits(size)
	id := t.find(units)
	if id == 0 {
		return 0
	}

	t.remove(id)
	if t.blocks[id].units == units {
		return id
	}

	restID := t.newID()
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

// newID can move the blocks.
func (t *tlsf) newID() int32 {
	id := t.firstUnusedID
	if id == 0 {
		t.blocks = append(t.blocks, tlsfBlock{})
		return int32(len(t.blocks) - 1)
	}

	t.firstUnusedID = t.blocks[id].next
	return id
}

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

// absorbNext merges a block with the next one of the segment. Neither may be in a stack.
func (t *tlsf) absorbNext(id int32) {
	b := &t.blocks[id]
	nextID := b.next
	next := &t.blocks[nextID]
	b.units += next.units
	b.next = next.next
	t.blocks[next.next].prev = id

	next.next = t.firstUnusedID
	t.firstUnusedID = nextID
}

// Compare with BenchmarkPairInEmptyPool and BenchmarkRandom.
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

// useTLSF makes the same requests as newUsedCore.
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
