package symmem_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// BenchmarkAlloc compares pools with a simple best-fit allocator. It divides a range of offsets
// into blocks. For example, the free blocks are 0 to 2048 and 8192 to 8704. A request of 100 bytes
// is rounded up to 512, and gets the smaller block: 8192 to 8704. When this block is released, it
// merges with free blocks that begin or end at its ends.

// naive is the allocator. It keeps no history and has no lock.
type naive struct {
	free []extent // free blocks, sorted by size and then by start
	// starts and ends hold the same blocks, by the offset of their start and of their end.
	starts, ends map[int64]extent
}

// extent is a block: the offsets from start to start+size.
type extent struct{ start, size int64 }

func (e extent) end() int64 { return e.start + e.size }

// naiveUnit is the unit of sizes in bytes, as in pools.
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
	a.starts[e.start] = e
	a.ends[e.end()] = e
}

// remove removes a free block.
func (a *naive) remove(e extent) {
	index, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Delete(a.free, index, index+1)
	delete(a.starts, e.start)
	delete(a.ends, e.end())
}

// alloc returns a block from the start of the smallest free block that is large enough. The rest
// stays free. If no free block is large enough, alloc returns errNaiveFull.
func (a *naive) alloc(bytes int64) (extent, error) {
	size := (bytes + naiveUnit - 1) / naiveUnit * naiveUnit // rounded up
	lowerBound := extent{start: 0, size: size}              // no block of this size sorts before it
	index, _ := slices.BinarySearchFunc(a.free, lowerBound, compareExtents)
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

	if next, ok := a.starts[e.end()]; ok {
		a.remove(next)
		e.size += next.size
	}

	a.insert(e)
}

// TestNaiveAllocatorMergesWithoutOverlap allocates and releases random blocks. Live blocks must not
// overlap. When all have been released, they must have merged to one block.
func TestNaiveAllocatorMergesWithoutOverlap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const whole = 64 << 10 // small enough for errNaiveFull
		const maxBytes = 8 << 10
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

			checkNewBlock(rt, e, bytes, live)
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

// checkNewBlock fails the test if a block is too small for its request or overlaps a live block.
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

// TestNaiveAllocatorBestFit releases a block of three units and one of one unit, which are not
// adjacent. A small request must get the smaller block, although the larger one comes first.
func TestNaiveAllocatorBestFit(t *testing.T) {
	a := newNaive(10 * naiveUnit)
	var blocks []extent
	for _, units := range []int64{3, 1, 1, 1, 4} { // 10 units together
		e, err := a.alloc(units * naiveUnit)
		if err != nil {
			t.Fatal(err)
		}

		blocks = append(blocks, e)
	}

	larger := blocks[0]
	smaller := blocks[2]
	a.release(larger)
	a.release(smaller)
	if e, err := a.alloc(1); err != nil || e != smaller {
		t.Errorf("got %+v, %v; want the free block of one unit, %+v", e, err, smaller)
	}
}
