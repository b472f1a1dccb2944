package bench

import (
	"errors"
	"slices"
)

// naive is a best-fit allocator as one writes it on a Sunday: free blocks in one list by size and
// then address, and two maps by which a freed block finds its neighbours. It is the baseline of
// placement, keeps no history and takes no lock.
type naive struct {
	// free is ordered by size, then by start.
	free []extent
	// starts and ends find a free block by where it begins and ends.
	starts, ends map[int64]extent
}

type extent struct{ start, size int64 }

// naiveUnit is what sizes are rounded up to, as in package alloc.
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
	at, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Insert(a.free, at, e)
	a.starts[e.start], a.ends[e.start+e.size] = e, e
}

func (a *naive) remove(e extent) {
	at, _ := slices.BinarySearchFunc(a.free, e, compareExtents)
	a.free = slices.Delete(a.free, at, at+1)
	delete(a.starts, e.start)
	delete(a.ends, e.start+e.size)
}

func (a *naive) alloc(bytes int64) (extent, error) {
	size := (bytes + naiveUnit - 1) / naiveUnit * naiveUnit
	at, _ := slices.BinarySearchFunc(a.free, extent{0, size}, compareExtents)
	if at == len(a.free) {
		return extent{}, errNaiveFull
	}
	found := a.free[at]
	a.remove(found)
	if rest := found.size - size; rest > 0 {
		a.insert(extent{found.start + size, rest})
	}
	return extent{found.start, size}, nil
}

func (a *naive) release(e extent) {
	if before, ok := a.ends[e.start]; ok {
		a.remove(before)
		e = extent{before.start, before.size + e.size}
	}
	if after, ok := a.starts[e.start+e.size]; ok {
		a.remove(after)
		e.size += after.size
	}
	a.insert(e)
}
