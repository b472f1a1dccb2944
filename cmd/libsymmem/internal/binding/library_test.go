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

// alone opens a library of one rank on the host.
func alone(t *testing.T, options string) (*Library, *Words) {
	t.Helper()
	words := &Words{}
	l := New(words, func(text string) { t.Error(text) })
	if err := l.Open([]byte(options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(true); err != nil {
			t.Error(err)
		}
	})
	return l, words
}

const host = `{"backend": "host", "size": 1, "check": "off"}`

func TestOptionsAreRead(t *testing.T) {
	for _, row := range []struct{ name, text, words string }{
		{"an unknown name is refused", `{"rnak": 1}`, "rnak"},
		{"two objects are refused", `{} {}`, "more than one"},
		{"a number must be one", `{"rank": "1"}`, "rank"},
		{"a negative timeout is refused", `{"timeout_ms": -1}`, "timeout_ms"},
		{"a timeout beyond a day is refused", `{"timeout_ms": 99999999999}`, "timeout_ms"},
		{"warnings after more than a day are refused", `{"warn_after_ms": 99999999999}`, "warn_after"},
		{"an unknown path is refused", `{"path": "scenic"}`, "scenic"},
		{"an unknown level is refused", `{"check": "some"}`, "some"},
		{"an unknown placement is refused", `{"backend": "host", "size": 1,
			"pool": {"placement": "lucky"}}`, "lucky"},
		{"a negative device is refused", `{"device": -1}`, "device"},
		{"an empty name is no variable", `{"environment": {"": "1"}}`, "setting"},
	} {
		t.Run(row.name, func(t *testing.T) {
			l := New(&Words{}, func(string) {})
			err := l.Open([]byte(row.text))
			if CodeOf(err) != Invalid || !strings.Contains(err.Error(), row.words) {
				t.Errorf("%v", err)
			}
			if l.IsOpen() {
				t.Error("it is open")
			}
		})
	}
}

func TestHandlesOfAnEarlierRankAreRefused(t *testing.T) {
	l, _ := alone(t, host)
	first, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(false); err != nil {
		t.Fatal(err)
	}
	if err := l.Open([]byte(host)); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(first); !errors.Is(err, symmem.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestTheOrderOfFreesDoesNotMatter gives the same buffers back in two orders, and looks at where
// the allocations after that lie.
func TestTheOrderOfFreesDoesNotMatter(t *testing.T) {
	const buffers = 24
	l, _ := alone(t, host)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	// run allocates, frees in an order, allocates again, and tells the places by their distance
	// from the first.
	run := func(t *rapid.T, sizes []int, gone []int) (places []uintptr) {
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
			at, err := l.Alloc(number, uint64(sizes[i]), uintptr(i%2), 0)
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		held := make([]uintptr, buffers)
		for i := range held {
			held[i] = alloc(i)
		}
		for _, i := range gone {
			if err := l.Free(held[i], true); err != nil {
				t.Fatal(err)
			}
			if err := l.Free(held[i], true); !errors.Is(err, symmem.ErrDoubleFree) {
				t.Fatalf("freeing again: %v", err)
			}
		}
		for i := range held {
			places = append(places, alloc(i)-held[0])
		}
		return places
	}
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOfN(rapid.IntRange(1, 1<<20), buffers, buffers).Draw(t, "sizes")
		numbers := make([]int, buffers)
		for i := range numbers {
			numbers[i] = i
		}
		gone := rapid.Permutation(numbers).Draw(t, "gone")[:buffers/2]
		other := rapid.Permutation(gone).Draw(t, "in another order")
		a, b := run(t, sizes, gone), run(t, sizes, other)
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("allocation %d lies at %#x, and in the other order at %#x", i, a[i], b[i])
			}
		}
	})
}

func TestWordsTellOfMemory(t *testing.T) {
	l, words := alone(t, host)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	before := words.Pending.Load()
	at, err := l.Alloc(0, 100, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if words.Pending.Load() == before {
		t.Error("a new segment is not told")
	}
	windows := words.Windows.Load()
	seen, err := l.ScopeEnd(world, 0)
	if err != nil || seen != words.Pending.Load() || words.Windows.Load() == windows {
		t.Errorf("seen %d of %d, windows %d: %v", seen, words.Pending.Load(), words.Windows.Load(), err)
	}
	if !l.IsSymmetric(world, 100, at) || l.IsSymmetric(world, 1<<40, at) {
		t.Error("the range is not told right")
	}
}

func TestComparingOnOneMachineMakesNoGarbage(t *testing.T) {
	l, _ := alone(t, host)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	const agrees = 1 // as symmem.h has it
	agree := func() {
		if _, err := l.Number(world, agrees, "batch size", 8, 1); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, agree); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAllocationMakesNoGarbage(t *testing.T) {
	l, _ := alone(t, host)
	pair := func() {
		at, err := l.Alloc(0, 2<<20, 0, 0)
		if err == nil {
			err = l.Free(at, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	pair()
	if n := testing.AllocsPerRun(100, pair); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAForcedCloseDoesNotWaitForOtherRanks, on the rank that serves the store, while the timeout is
// an hour.
func TestAForcedCloseDoesNotWaitForOtherRanks(t *testing.T) {
	ranks := make([]*Library, 2)
	opened := make(chan error, len(ranks))
	store := "unix:@torch-" + rand.Text()
	for rank := range ranks {
		ranks[rank] = New(&Words{}, func(text string) { t.Error(text) })
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
