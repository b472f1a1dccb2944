package symmem_test

import (
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

type extent struct{ start, size int64 }

// naiveUnit is the unit of sizes, as in package alloc.
const naiveUnit = 512

var errNaiveFull = errors.New("the naive allocator is full")

func newNaive(bytes int64) *naive {
	a := &naive{starts: map[int64]extent{}, ends: map[int64]extent{}}
	a.insert(extent{0, bytes})
	return a
}

func compareExtents(a, b extent) int {
	switch {
	case a.size != b.size:
		return int(min(max(a.size-b.size, -1), 1))
	default:
		return int(min(max(a.start-b.start, -1), 1))
	}
}

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

func (a *naive) alloc(bytes int64) (extent, error) {
	size := (bytes + naiveUnit - 1) / naiveUnit * naiveUnit
	smallest := extent{0, size} // sorts before all blocks that are large enough
	index, _ := slices.BinarySearchFunc(a.free, smallest, compareExtents)
	if index == len(a.free) {
		return extent{}, errNaiveFull
	}
	found := a.free[index]
	a.remove(found)
	if rest := found.size - size; rest > 0 {
		a.insert(extent{found.start + size, rest})
	}
	return extent{found.start, size}, nil
}

// release frees a block and merges it with the adjacent free blocks.
func (a *naive) release(e extent) {
	if previous, ok := a.ends[e.start]; ok {
		a.remove(previous)
		e = extent{previous.start, previous.size + e.size}
	}
	if next, ok := a.starts[e.start+e.size]; ok {
		a.remove(next)
		e.size += next.size
	}
	a.insert(e)
}

func TestNaiveAllocatorMergesWithoutOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const whole = 64 << 10
		a := newNaive(whole)
		var live []extent
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(rt, "free") {
				victim := rapid.IntRange(0, len(live)-1).Draw(rt, "victim")
				a.release(live[victim])
				live = append(live[:victim], live[victim+1:]...)
				continue
			}
			e, err := a.alloc(int64(rapid.IntRange(1, 8<<10).Draw(rt, "bytes")))
			if errors.Is(err, errNaiveFull) {
				continue
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
		if len(a.free) != 1 || a.free[0] != (extent{0, whole}) || len(a.starts) != 1 {
			rt.Fatalf("got the free blocks %+v and %d starts, want one block of %d bytes", a.free,
				len(a.starts), whole)
		}
	})
}

func TestNaiveAllocatorBestFit(t *testing.T) {
	a := newNaive(10 * naiveUnit)
	var blocks []extent
	for _, units := range []int64{3, 1, 1, 1, 4} {
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
