package symmem_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is a simple best-fit allocator of ranges of offsets, with which BenchmarkAlloc compares
// pools. It keeps no history and has no lock.
type naive struct {
	free []extent // free blocks, sorted by size and then by start
	// starts and ends hold the free blocks by the offset at which they begin or end.
	starts, ends map[int64]extent
}

// extent is a range of offsets: a free block or a live one.
type extent struct{ start, size int64 }

// naiveUnit is the unit of sizes in bytes, as in package alloc.
const naiveUnit = 512

var errNaiveFull = errors.New("the naive allocator is full")

// newNaive returns an allocator of the offsets from 0 to bytes.
func newNaive(bytes int64) *naive {
	a := &naive{starts: map[int64]extent{}, ends: map[int64]extent{}}
	a.insert(extent{start: 0, size: bytes})
	return a
}

// compareExtents orders extents by size and then by start.
func compareExtents(a, b extent) int {
	return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.start, b.start))
}

// insert adds a free block.
func (a *naive) insert(e extent) {
	index, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Insert(a.free, index, e)
	a.starts[e.start], a.ends[e.start+e.size] = e, e
}

// remove removes a free block.
func (a *naive) remove(e extent) {
	index, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Delete(a.free, index, index+1)
	delete(a.starts, e.start)
	delete(a.ends, e.start+e.size)
}

// alloc takes the smallest free block that is large enough, and keeps its rest free. It returns
// errNaiveFull if there is none.
func (a *naive) alloc(bytes int64) (extent, error) {
	size := (bytes + naiveUnit - 1) / naiveUnit * naiveUnit // rounded up
	smallest := extent{start: 0, size: size}                // sorts before blocks of this size
	index, _ := slices.BinarySearchFunc(a.free, smallest, compareExtents)
	if index == len(a.free) {
		return extent{}, errNaiveFull
	}

	found := a.free[index]
	a.remove(found)
	if rest := found.size - size; rest > 0 {
		a.insert(extent{start: found.start + size, size: rest})
	}

	return extent{start: found.start, size: size}, nil
}

// release frees a block and merges it with the adjacent free blocks.
func (a *naive) release(e extent) {
	if previous, ok := a.ends[e.start]; ok {
		a.remove(previous)
		e = extent{start: previous.start, size: previous.size + e.size}
	}

	if next, ok := a.starts[e.start+e.size]; ok {
		a.remove(next)
		e.size += next.size
	}

	a.insert(e)
}

// TestNaiveAllocatorMergesWithoutOverlap allocates and frees random blocks. Live blocks must not
// overlap. When all are free, they must have merged to one block.
func TestNaiveAllocatorMergesWithoutOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const whole, maxBytes = 64 << 10, 8 << 10 // small enough for errNaiveFull
		a := newNaive(whole)
		var live []extent
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(rt, "free") {
				victim := rapid.IntRange(0, len(live)-1).Draw(rt, "victim")
				a.release(live[victim])
				live = append(live[:victim], live[victim+1:]...)
				continue
			}

			bytes := rapid.Int64Range(1, maxBytes).Draw(rt, "bytes")
			e, err := a.alloc(bytes)
			if errors.Is(err, errNaiveFull) {
				continue
			}

			if err != nil {
				rt.Fatal(err)
			}

			if e.size < bytes {
				rt.Fatalf("got the block %+v, want at least %d bytes", e, bytes)
			}

			for _, other := range live {
				if e.start < other.start+other.size && other.start < e.start+e.size {
					rt.Fatalf("the new block %+v overlaps the live block %+v", e, other)
				}
			}

			live = append(live, e)
		}

		for _, e := range live {
			a.release(e)
		}

		if want := []extent{{start: 0, size: whole}}; !slices.Equal(a.free, want) {
			rt.Fatalf("got the free blocks %+v, want %+v", a.free, want)
		}

		if len(a.starts) != 1 || len(a.ends) != 1 {
			rt.Fatalf("got %d starts and %d ends of one free block, want 1 each", len(a.starts),
				len(a.ends))
		}
	})
}

// TestNaiveAllocatorBestFit frees a block of three units and one of one unit, with live blocks
// around them. A small request must get the smaller block, although the larger one comes first.
func TestNaiveAllocatorBestFit(t *testing.T) {
	a := newNaive(10 * naiveUnit)
	var blocks []extent
	for _, units := range []int64{3, 1, 1, 1, 4} { // all of the 10 units
		e, err := a.alloc(units * naiveUnit)
		if err != nil {
			t.Fatal(err)
		}

		blocks = append(blocks, e)
	}

	a.release(blocks[0])
	a.release(blocks[2])
	if e, err := a.alloc(1); err != nil || e != blocks[2] {
		t.Errorf("got %+v, %v; want the free block of one unit, %+v", e, err, blocks[2])
	}
}
