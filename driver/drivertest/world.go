package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
)

const (
	longTimeout  = 2 * time.Minute        // expires only if a test hangs
	shortTimeout = 500 * time.Millisecond // for waits that should time out
)

// world is the set of ranks of a test. Each rank has a device, a stream, an arena (an address range
// for device memory) and usually a group of all ranks. These two ranks enter a barrier:
//
//	w := newWorld(t, h, 2, options{})
//	w.onEachRank(func(r *rank) {
//		r.must(r.launchAndWait(r.group, r.stream, barrier))
//	})
type world struct {
	options
	t       *testing.T
	harness Harness
	ctx     context.Context // ends after options.lifetime
	ranks   []*rank         // by rank number
}

type options struct {
	timeout           time.Duration  // Config.Timeout; 0 means longTimeout
	lifetime          time.Duration  // time limit of the test; 0 means longTimeout
	scatter           uint64         // Config.Scatter
	checkCalls        bool           // GroupConfig.Check: the ranks compare their calls
	isStrict          bool           // GroupConfig.Strict
	formula           driver.Formula // GroupConfig.Formula
	noGroup           bool           // leave rank.group nil
	ignoreCloseErrors bool
}

// newWorld opens n ranks and closes them when the test ends.
//
// While a failed group is open, a backend that lacks the part Anytime may be unable to connect
// groups. Open the next world in another subtest.
func newWorld(t *testing.T, h Harness, n int, o options) *world {
	t.Helper()
	if n > h.Ranks {
		t.Skipf("the test needs %d ranks, but the backend opens at most %d", n, h.Ranks)
	}

	lifetime := cmp.Or(o.lifetime, longTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	w := &world{options: o, t: t, harness: h, ctx: ctx}
	for i := range n {
		w.ranks = append(w.ranks, &rank{world: w, number: i})
	}

	t.Cleanup(func() {
		defer cancel()
		errs := w.errorsByRank((*rank).close)
		if err := errors.Join(errs...); err != nil && !w.ignoreCloseErrors {
			t.Errorf("closing the world: %v", err)
		}
	})
	store := &Store{}
	w.onEachRank(func(r *rank) { r.open(store) })
	return w
}

// openRank opens a world of one rank without a group.
func openRank(t *testing.T, h Harness) *rank {
	t.Helper()
	return newWorld(t, h, 1, options{noGroup: true}).ranks[0]
}

// onEachRank runs f in one goroutine per rank and waits for all. If f calls rank.failf, onEachRank
// ends the test.
func (w *world) onEachRank(f func(r *rank)) {
	w.t.Helper()
	if !w.tryOnEachRank(f) {
		w.t.FailNow()
	}
}

// tryOnEachRank is like onEachRank, but returns false instead of ending the test.
func (w *world) tryOnEachRank(f func(r *rank)) bool {
	var running sync.WaitGroup
	var successCount atomic.Int32
	for _, r := range w.ranks {
		running.Go(func() {
			r.isInGoroutine = true
			defer func() { r.isInGoroutine = false }()
			f(r)
			successCount.Add(1) // not reached if f fails, because rank.failf ends the goroutine
		})
	}

	running.Wait()
	return int(successCount.Load()) == len(w.ranks)
}

// errorsByRank is like onEachRank, and returns the results of f by rank number.
func (w *world) errorsByRank(f func(r *rank) error) []error {
	w.t.Helper()
	errs := make([]error, len(w.ranks))
	w.onEachRank(func(r *rank) {
		if err := f(r); err != nil {
			errs[r.number] = fmt.Errorf("rank %d: %w", r.number, err)
		}
	})
	return errs
}

// numbersBelow returns 0 to n-1.
func numbersBelow(n int) []int {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}

	return numbers
}

// must ends the test if err is not nil. In the goroutine of a rank, use rank.must.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that err matches target. call describes the call that returned err.
func wantError(t *testing.T, call string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", call, err, target)
	}
}
