package symmem_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naive is a simple best-fit allocator, to which BenchmarkAlloc compares pools.
type naive struct {
	free           []extent         // in the order of compareExtents
	byStart, byEnd map[int64]extent // the blocks of free
}

// extent is a free or live block. start is an offset in bytes.
type extent struct{ start, size int64 }

func (e extent) end() int64 { return e.start + e.size }

// Block sizes are multiples of naiveUnit bytes.
const naiveUnit = 512

var errNaiveFull = errors.New("the naive allocator is full")

func newNaive(bytes int64) *naive {
	a := &naive{byStart: map[int64]extent{}, byEnd: map[int64]extent{}}
	a.insert(extent{start: 0, size: bytes})
	return a
}

// compareExtents orders blocks by size, and equal sizes by start.
func compareExtents(x, y extent) int {
	return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.start, y.start))
}

func (a *naive) insert(e extent) {
	index, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Insert(a.free, index, e)
	a.byStart[e.start] = e
	a.byEnd[e.end()] = e
}

func (a *naive) remove(e extent) {
	index, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Delete(a.free, index, index+1)
	delete(a.byStart, e.start)
	delete(a.byEnd, e.end())
}

// alloc splits the smallest free block that is large enough.
func (a *naive) alloc(bytes int64) (extent, error) {
	size := (bytes + naiveUnit - 1) / naiveUnit * naiveUnit // rounded up
	firstOfSize := extent{start: 0, size: size}             // first in the order
	index, _ := slices.BinarySearchFunc(a.free, firstOfSize, compareExtents)
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
	if previous, ok := a.byEnd[e.start]; ok {
		a.remove(previous)
		e = extent{start: previous.start, size: previous.size + e.size}
	}

	if next, ok := a.byStart[e.end()]; ok {
		a.remove(next)
		e.size += next.size
	}

	a.insert(e)
}

// Live blocks never overlap. When all are released, they merge into one free block.
func TestNaiveAllocatorMergesWithoutOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const capacity = 64 << 10 // small enough to become full
		const maxBytes, maxSteps = 8 << 10, 80
		a := newNaive(capacity)
		var live []extent
		for range rapid.IntRange(1, maxSteps).Draw(rt, "steps") {
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

			checkNewBlock(rt, e, bytes, live)
			live = append(live, e)
		}

		for _, e := range live {
			a.release(e)
		}

		if want := []extent{{start: 0, size: capacity}}; !slices.Equal(a.free, want) {
			rt.Fatalf("got the free blocks %+v, want %+v", a.free, want)
		}

		if len(a.byStart) != 1 || len(a.byEnd) != 1 {
			rt.Fatalf("got %d starts and %d ends of one free block, want 1 each", len(a.byStart),
				len(a.byEnd))
		}
	})
}

func checkNewBlock(rt *rapid.T, e extent, bytes int64, live []extent) {
	rt.Helper()
	if e.size < bytes {
		rt.Fatalf("got the block %+v, want at least %d bytes", e, bytes)
	}

	for _, other := range live {
		overlaps := e.start < other.end() && other.start < e.end()
		if overlaps {
			rt.Fatalf("the new block %+v overlaps the live block %+v", e, other)
		}
	}
}

// A request gets the smallest free block that fits, even if a larger one has a lower offset.
func TestNaiveAllocatorBestFit(t *testing.T) {
	const capacity = 10 * naiveUnit
	a := newNaive(capacity)
	alloc := func(bytes int64) extent {
		e, err := a.alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}

		return e
	}
	larger := alloc(3 * naiveUnit)
	alloc(naiveUnit) // separates larger and smaller
	smaller := alloc(naiveUnit)
	alloc(capacity - smaller.end())
	a.release(larger)
	a.release(smaller)
	if e, err := a.alloc(1); err != nil || e != smaller {
		t.Errorf("got %+v, %v; want the free block of one unit, %+v", e, err, smaller)
	}
}
