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

// openLibrary opens a Library with options in JSON. The test fails if the Library warns.
func openLibrary(t *testing.T, options string) (*Library, *Counters) {
	t.Helper()
	counters := &Counters{}
	l := New(counters, func(text string) { t.Error(text) })
	if err := l.Open([]byte(options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(true); err != nil {
			t.Error(err)
		}
	})
	return l, counters
}

const hostOptions = `{"backend": "host", "size": 1, "check": "off"}`

func TestInvalidOptionsAreRejected(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
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
			err := l.Open([]byte(row.text))
			if CodeOf(err) != CodeInvalid || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Open = %v, want %v with %q", err, CodeInvalid, row.want)
			}
			if l.IsOpen() {
				t.Error("IsOpen() = true, want false")
			}
		})
	}
}

func TestHandlesOfEarlierRankAreRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	first, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(false); err != nil {
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

func TestOrderOfFreesDoesNotAffectPlacement(t *testing.T) {
	const bufferCount = 24
	const delay, force = true, true
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	// run opens a pool and allocates a buffer of each size. Then it frees the buffers with the given
	// indices, in the given order, and allocates all sizes again. It returns the offsets of the new
	// buffers from the first buffer.
	run := func(t *rapid.T, sizes []int, freed []int) (offsets []uintptr) {
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
			stream := uintptr(i % 2)
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
		for _, i := range freed {
			if err := l.Free(addresses[i], delay); err != nil {
				t.Fatal(err)
			}
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
		indices := make([]int, bufferCount)
		for i := range indices {
			indices[i] = i
		}
		freed := rapid.Permutation(indices).Draw(t, "frees")[:bufferCount/2]
		reordered := rapid.Permutation(freed).Draw(t, "frees in another order")
		offsets, otherOffsets := run(t, sizes, freed), run(t, sizes, reordered)
		for i := range offsets {
			if offsets[i] != otherOffsets[i] {
				t.Fatalf("allocation %d is at offset %#x or %#x, depending on the order of frees",
					i, offsets[i], otherOffsets[i])
			}
		}
	})
}

func TestCountersCountMemoryAndWindows(t *testing.T) {
	l, counters := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	before := counters.Pending.Load()
	address, err := l.Alloc(mainPool, 100, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}
	if counters.Pending.Load() == before {
		t.Error("a new segment did not change Pending")
	}
	windowsBefore := counters.Windows.Load()
	pending, err := l.ScopeEnd(world, defaultStream)
	if err != nil || pending != counters.Pending.Load() {
		t.Errorf("ScopeEnd = %d, %v; want Pending, which is %d", pending, err, counters.Pending.Load())
	}
	if counters.Windows.Load() == windowsBefore {
		t.Error("ScopeEnd registered a segment, but did not change Windows")
	}
	if !l.IsSymmetric(world, 100, address) {
		t.Error("IsSymmetric = false for registered memory, want true")
	}
	if l.IsSymmetric(world, 1<<40, address) {
		t.Error("IsSymmetric = true for a range that ends after the registered memory, want false")
	}
}

func TestCombineNumberDoesNotAllocate(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	const valueAgree, site = 1, 1 // valueAgree is SYMMEM_VALUE_AGREE
	agree := func() {
		if _, err := l.CombineNumber(world, valueAgree, "batch size", 8, site); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, agree); n > 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
}

func TestAllocDoesNotAllocateOnGoHeap(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	allocAndFree := func() {
		address, err := l.Alloc(mainPool, 2<<20, defaultStream, noSite)
		if err == nil {
			err = l.Free(address, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	allocAndFree() // the first call creates a segment
	if n := testing.AllocsPerRun(100, allocAndFree); n > 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
}

// TestForcedCloseDoesNotWaitForOtherRanks closes two ranks with a timeout of an hour, starting with
// the rank that serves the store.
func TestForcedCloseDoesNotWaitForOtherRanks(t *testing.T) {
	ranks := make([]*Library, 2)
	opened := make(chan error, len(ranks))
	store := "unix:@torch-" + rand.Text()
	for rank := range ranks {
		ranks[rank] = New(&Counters{}, func(text string) { t.Error(text) })
		go func() {
			opened <- ranks[rank].Open(fmt.Appendf(nil, `{"backend": "host", "rank": %d, "size": 2,
				"store": %q, "timeout_ms": 3600000}`, rank, store))
		}()
	}
	for range ranks {
		if err := <-opened; err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range ranks {
		if err := l.Close(true); err != nil {
			t.Error(err)
		}
	}
}
