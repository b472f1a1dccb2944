package binding

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

// Arguments of Close, CloseWorld, ClosePool and Free.
const (
	force, withoutForce = true, false // whether to close although buffers are live
	delay, noDelay      = true, false // whether Free may only retire the buffer, and free it later
)

// hostOptions describes a world, which is a set of ranks, with this process as its only rank. With
// check off, the rank does not compare its calls with those of others.
const hostOptions = `{"backend": "host", "size": 1, "check": "off"}`

// openLibrary opens a Library with options in JSON, and closes it when the test ends. The test
// fails if the Library prints a warning.
func openLibrary(t *testing.T, options string) (*Library, *Counters) {
	t.Helper()
	counters := &Counters{}
	l := New(counters, func(text string) { t.Error(text) })
	if err := l.Open([]byte(options)); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := l.Close(force); err != nil {
			t.Error(err)
		}
	})
	return l, counters
}

// TestInvalidOptionsAreRejected checks that Open fails with an error that names the wrong option,
// and that the Library then counts as not open.
func TestInvalidOptionsAreRejected(t *testing.T) {
	for _, row := range []struct {
		name    string
		options string // in JSON
		want    string // part of the error's text
	}{
		{"unknown name", `{"rnak": 1}`, "rnak"},
		{"two objects", `{} {}`, "text after the JSON object"},
		{"text instead of a number", `{"rank": "1"}`, "rank"},
		{"negative timeout", `{"timeout_ms": -1}`, "timeout_ms"},
		{"timeout of more than a day", `{"timeout_ms": 99999999999}`, "timeout_ms"},
		{"warning after more than a day", `{"warn_after_ms": 99999999999}`, "warn_after"},
		{"unknown path", `{"path": "scenic"}`, "scenic"},
		{"unknown check level", `{"check": "some"}`, "some"},
		{"unknown placement", `{"backend": "host", "size": 1,
			"pool": {"placement": "lucky"}}`, "lucky"},
		{"negative device", `{"device": -1}`, "device"},
		{"variable with an empty name", `{"environment": {"": "1"}}`, "setting"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := New(&Counters{}, func(string) {})
			err := l.Open([]byte(row.options))
			if CodeOf(err) != CodeInvalid || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Open(%s) = %v, want an error with code %v and the text %q", row.options, err,
					CodeInvalid, row.want)
			}

			if l.IsOpen() {
				t.Error("IsOpen() = true, want false")
			}
		})
	}
}

// TestHandlesOfEarlierRankAreRefused opens a Library twice. The handle of the first world must not
// work as a handle of the second world.
func TestHandlesOfEarlierRankAreRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	first, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	if err := l.Close(withoutForce); err != nil {
		t.Fatal(err)
	}

	if err := l.Open([]byte(hostOptions)); err != nil {
		t.Fatal(err)
	}

	err = l.Check(first)
	if !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("Check of the closed world: got %v, want %v", err, symmem.ErrClosed)
	}
}

// TestOrderOfFreesDoesNotAffectPlacement frees the same buffers in two different orders. Later
// allocations must get the same places, because PyTorch frees in a different order on each rank.
func TestOrderOfFreesDoesNotAffectPlacement(t *testing.T) {
	const bufferCount = 24 // enough for free blocks of many sizes, few enough to be fast
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	// offsetsAfterFrees opens a pool and allocates a buffer of each size. Then it frees the buffers
	// with the given indices, in the given order, and allocates all sizes again. It returns the
	// offsets of the new buffers from the first buffer of the pool.
	offsetsAfterFrees := func(t *rapid.T, sizes, freedIndices []int) (offsets []uintptr) {
		poolNumber, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}

		defer func() {
			if err := l.ClosePool(poolNumber, force); err != nil {
				t.Fatal(err)
			}
		}()
		alloc := func(i int) uintptr {
			stream := uintptr(i % 2) // two streams, because each has separate free blocks
			address, err := l.Alloc(poolNumber, uint64(sizes[i]), stream, noSite)
			if err != nil {
				t.Fatal(err)
			}

			return address
		}
		addresses := make([]uintptr, bufferCount)
		for i := range addresses {
			addresses[i] = alloc(i)
		}

		for _, i := range freedIndices {
			if err := l.Free(addresses[i], delay); err != nil {
				t.Fatal(err)
			}

			// The buffer is only retired, but counts as freed.
			if err := l.Free(addresses[i], delay); !errors.Is(err, symmem.ErrDoubleFree) {
				t.Fatalf("freeing buffer %d again: got %v, want %v", i, err, symmem.ErrDoubleFree)
			}
		}

		for i := range addresses {
			offsets = append(offsets, alloc(i)-addresses[0])
		}

		return offsets
	}
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 1<<20), bufferCount, bufferCount).Draw(t, "sizes")
		allIndices := make([]int, bufferCount)
		for i := range allIndices {
			allIndices[i] = i
		}

		freed := rapid.Permutation(allIndices).Draw(t, "frees")[:bufferCount/2]
		reordered := rapid.Permutation(freed).Draw(t, "frees in another order")
		offsets := offsetsAfterFrees(t, sizes, freed)
		otherOffsets := offsetsAfterFrees(t, sizes, reordered)
		for i := range offsets {
			if offsets[i] != otherOffsets[i] {
				t.Fatalf("allocation %d: got offset %#x after frees in the order %v, but %#x after %v",
					i, offsets[i], freed, otherOffsets[i], reordered)
			}
		}
	})
}

// TestCountersCountMemoryAndWindows checks the counters that tell callers when ScopeEnd is needed.
// Pending changes with each new segment, a piece of mapped memory for buffers. Windows changes
// when a segment is registered, and so becomes a window.
func TestCountersCountMemoryAndWindows(t *testing.T) {
	const bufferBytes = 100
	l, counters := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	pendingBefore := counters.Pending.Load()
	address, err := l.Alloc(mainPool, bufferBytes, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}

	if counters.Pending.Load() == pendingBefore {
		t.Errorf("Pending = %d as before, want a change because of a new segment", pendingBefore)
	}

	windowsBefore := counters.Windows.Load()
	pending, err := l.ScopeEnd(world, defaultStream) // registers the segment
	if err != nil {
		t.Fatal(err)
	}

	if want := counters.Pending.Load(); pending != want {
		t.Errorf("ScopeEnd = %d, want the value of Pending, %d", pending, want)
	}

	if counters.Windows.Load() == windowsBefore {
		t.Errorf("Windows = %d as before, want a change because of a new window", windowsBefore)
	}

	if !l.IsSymmetric(world, bufferBytes, address) {
		t.Error("IsSymmetric = false for registered memory, want true")
	}

	const bytesPastSegment = 1 << 40
	if l.IsSymmetric(world, bytesPastSegment, address) {
		t.Error("IsSymmetric = true for a range that ends after the registered memory, want false")
	}
}

// TestCombineNumberDoesNotAllocate checks that a value that ranks compare in every training step
// costs no garbage.
func TestCombineNumberDoesNotAllocate(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	const valueAgree = 1 // SYMMEM_VALUE_AGREE in symmem.h
	const batchSize, site = 8, 1
	agree := func() {
		if _, err := l.CombineNumber(world, valueAgree, "batch size", batchSize, site); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, agree); n > 0 {
		t.Errorf("CombineNumber makes %v allocations per call, want 0", n)
	}
}

// TestAllocDoesNotAllocateOnGoHeap checks that PyTorch's frequent allocations and frees cost no
// garbage.
func TestAllocDoesNotAllocateOnGoHeap(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	allocAndFree := func() {
		address, err := l.Alloc(mainPool, 2<<20, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}

		if err := l.Free(address, delay); err != nil {
			t.Fatal(err)
		}
	}
	allocAndFree() // creates a segment, which later calls use again
	if n := testing.AllocsPerRun(100, allocAndFree); n > 0 {
		t.Errorf("an Alloc and a Free make %v allocations on the Go heap, want 0", n)
	}
}

// TestForcedCloseDoesNotWaitForOtherRanks closes two ranks one after the other. Rank 0 is closed
// first, although rank 1 depends on it: rank 0 serves the store, through which ranks find each
// other. A rank that waited for the other would wait for an hour, until the test binary times out.
func TestForcedCloseDoesNotWaitForOtherRanks(t *testing.T) {
	const hour = 3_600_000 // in milliseconds
	ranks := make([]*Library, 2)
	opened := make(chan error, len(ranks))
	store := "unix:@torch-" + rand.Text() // a socket that no other test uses
	for rank := range ranks {
		ranks[rank] = New(&Counters{}, func(text string) { t.Error(text) })
		options := fmt.Appendf(nil, `{"backend": "host", "rank": %d, "size": %d, "store": %q,
			"timeout_ms": %d}`, rank, len(ranks), store, hour)
		go func() { opened <- ranks[rank].Open(options) }() // Open waits for the other rank
	}

	for range ranks {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}

	for rank, l := range ranks {
		if err := l.Close(force); err != nil {
			t.Errorf("closing rank %d: %v", rank, err)
		}
	}
}
