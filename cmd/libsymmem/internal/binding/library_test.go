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
	if err := l.Check(first); !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("Check of the closed world: got %v, want %v", err, symmem.ErrClosed)
	}
}

func TestOrderOfFreesDoesNotAffectPlacement(t *testing.T) {
	const buffers = 24
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	// run allocates buffers, frees those listed in frees in that order, and allocates again. It
	// returns the offsets of the new buffers from the first buffer.
	run := func(t *rapid.T, sizes []int, frees []int) (offsets []uintptr) {
		number, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := l.ClosePool(number, true); err != nil {
				t.Fatal(err)
			}
		}()
		alloc := func(i int) uintptr {
			address, err := l.Alloc(number, uint64(sizes[i]), uintptr(i%2), 0)
			if err != nil {
				t.Fatal(err)
			}
			return address
		}
		buffer := make([]uintptr, buffers)
		for i := range buffer {
			buffer[i] = alloc(i)
		}
		for _, i := range frees {
			if err := l.Free(buffer[i], true); err != nil {
				t.Fatal(err)
			}
			if err := l.Free(buffer[i], true); !errors.Is(err, symmem.ErrDoubleFree) {
				t.Fatalf("freeing buffer %d again: got %v, want %v", i, err, symmem.ErrDoubleFree)
			}
		}
		for i := range buffer {
			offsets = append(offsets, alloc(i)-buffer[0])
		}
		return offsets
	}
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 1<<20), buffers, buffers).Draw(t, "sizes")
		numbers := make([]int, buffers)
		for i := range numbers {
			numbers[i] = i
		}
		frees := rapid.Permutation(numbers).Draw(t, "frees")[:buffers/2]
		reordered := rapid.Permutation(frees).Draw(t, "frees in another order")
		a, b := run(t, sizes, frees), run(t, sizes, reordered)
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("allocation %d is at offset %#x or %#x, depending on the order of frees",
					i, a[i], b[i])
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
	address, err := l.Alloc(0, 100, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if counters.Pending.Load() == before {
		t.Error("a new segment did not change Pending")
	}
	windows := counters.Windows.Load()
	seen, err := l.ScopeEnd(world, 0)
	if err != nil || seen != counters.Pending.Load() || counters.Windows.Load() == windows {
		t.Errorf("ScopeEnd = %d, %v; Pending = %d, Windows = %d; want Pending, and Windows not %d",
			seen, err, counters.Pending.Load(), counters.Windows.Load(), windows)
	}
	if !l.IsSymmetric(world, 100, address) || l.IsSymmetric(world, 1<<40, address) {
		t.Error("IsSymmetric is false for registered memory, or true beyond it")
	}
}

func TestCombineNumberDoesNotAllocate(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	const valueAgree = 1 // SYMMEM_VALUE_AGREE
	agree := func() {
		if _, err := l.CombineNumber(world, valueAgree, "batch size", 8, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, agree); n > 0 {
		t.Errorf("%v allocations per run, want 0", n)
	}
}

func TestAllocDoesNotAllocateOnGoHeap(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	pair := func() {
		address, err := l.Alloc(0, 2<<20, 0, 0)
		if err == nil {
			err = l.Free(address, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pair()
	if n := testing.AllocsPerRun(100, pair); n > 0 {
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
