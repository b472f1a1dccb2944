package alloc

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// tlsf implements TLSF (two-level segregated fit) over one segment, for comparison. Each of its 32
// size ranges between powers of two has a stack of free blocks. Requests are rounded up to the next
// range. It has no counters, handle checks or streams.
type tlsf struct {
	blocks  []tlsfBlock
	vacant  int32
	summary uint64
	words   [64]uint32
	heads   [64][32]int32
}

type tlsfBlock struct {
	position, units uint64
	prev, next      int32 // neighbors in the segment
	before, after   int32 // neighbors in the stack of the range
	free            bool
	_               [24]byte // pads the record to a cache line
}

func newTLSF(units uint64) *tlsf {
	t := &tlsf{blocks: make([]tlsfBlock, 2, 1<<16)}
	t.blocks[1].units = units
	t.insert(1)
	return t
}

func tlsfRange(units uint64) (row, column int) {
	if units < 32 {
		return 0, int(units)
	}
	log := bits.Len64(units) - 1
	return (log - 4) & 63, int(units>>((log-5)&63)) & 31
}

func (t *tlsf) insert(id int32) {
	b := &t.blocks[id]
	row, column := tlsfRange(b.units)
	head := &t.heads[row][column]
	b.free, b.before, b.after = true, 0, *head
	t.blocks[*head].before = id
	*head = id
	t.words[row] |= 1 << column
	t.summary |= 1 << row
}

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
	if t.words[row] &^= 1 << column; t.words[row] == 0 {
		t.summary &^= 1 << row
	}
}

// find returns a block from the lowest nonempty range in which every block is large enough, or 0.
func (t *tlsf) find(units uint64) int32 {
	if units >= 32 {
		units += 1<<((bits.Len64(units)-6)&63) - 1
	}
	row, column := tlsfRange(units)
	word := t.words[row] >> column << column
	if word == 0 {
		summary := t.summary &^ (2<<row - 1)
		if summary == 0 {
			return 0
		}
		row = bits.TrailingZeros64(summary) & 63
		word = t.words[row]
	}
	return t.heads[row][bits.TrailingZeros32(word)&31]
}

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
	r.position, r.units, r.prev, r.next = b.position+units, b.units-units, id, b.next
	t.blocks[b.next].prev = rest
	b.next, b.units = rest, units
	t.insert(rest)
	return id
}

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

func (t *tlsf) absorb(id, after int32) {
	b, a := &t.blocks[id], &t.blocks[after]
	b.units += a.units
	b.next = a.next
	t.blocks[a.next].prev = id
	a.next = t.vacant
	t.vacant = after
}

func BenchmarkTLSF(b *testing.B) {
	b.Run("pair", func(b *testing.B) {
		t := newTLSF(1 << 25)
		for b.Loop() {
			t.free(t.alloc(4096))
		}
	})
	b.Run("random", func(b *testing.B) {
		t := newTLSF(1 << 25)
		random := rand.New(rand.NewPCG(1, 2))
		blocks := make([]int32, 10_000)
		for i := range blocks {
			blocks[i] = t.alloc(Unit + random.Int64N(mib-Unit))
		}
		for range 10 * len(blocks) {
			i := random.IntN(len(blocks))
			t.free(blocks[i])
			blocks[i] = t.alloc(Unit + random.Int64N(mib-Unit))
		}
		victims, sizes := randomDraws(len(blocks))
		for i := 0; b.Loop(); i++ {
			v := victims[i%drawCount]
			t.free(blocks[v])
			blocks[v] = t.alloc(sizes[i%drawCount])
		}
	})
}
