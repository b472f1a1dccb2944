package controltest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

var valueContracts = []contract{
	{"in each step, every rank receives the words of all ranks", testWords},
	{"a wait under one name does not block another name", testNames},
	{"ranks may use names in any order", testOrderOfNames},
	{"invalid names are rejected without side effects", testBadNames},
	{"canceling its context ends Gather and makes the plane fail", testValueCancelled},
	{"methods of named values return ErrClosed after the plane is closed", testValueClosed},
	{"Gather on an ordered name detects a deadlock with a rank in a collective", testOrdered},
}

func gather(
	ctx context.Context, p control.Plane, name string, first uint64,
) ([]driver.Words, error) {
	all := make([]driver.Words, 8)
	n, err := p.Named(name, false)
	if err != nil {
		return nil, err
	}
	return all, n.Gather(ctx, driver.Words{first, 1, 2, 3, 4, ^first}, all)
}

// gatherAndCheck gathers values under a name, each rank contributing a different one, and
// checks the results.
func (w *world) gatherAndCheck(i int, name string, round int) error {
	value := func(rank int) uint64 { return uint64(1000*round + rank) }
	all, err := gather(w.ctx, w.planes[i], name, value(i))
	if err != nil {
		return err
	}
	for rank := range w.planes {
		if want := (driver.Words{value(rank), 1, 2, 3, 4, ^value(rank)}); all[rank] != want {
			return fmt.Errorf("%s %d: words of group rank %d = %v, want %v",
				name, round, rank, all[rank], want)
		}
	}
	return nil
}

func testWords(t *testing.T, join Join) {
	w := newWorld(t, join, 3, patience)
	w.each(t, func(i int, p control.Plane) error {
		for round := range 100 {
			if err := w.gatherAndCheck(i, "one", round); err != nil {
				return err
			}
			if err := w.gatherAndCheck(i, "two", round); err != nil {
				return err
			}
		}
		return checkOpen(p)
	})
}

// testNames makes rank 0 wait under one name. Meanwhile, steps under another name, exchanges and
// comparisons must complete.
func testNames(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	over := make(chan struct{})
	w.each(t, func(i int, p control.Plane) error {
		result := make(chan error, 1)
		go func() {
			if i == 1 {
				<-over
			}
			result <- w.gatherAndCheck(i, "slow", 1)
		}()
		for round := range 20 {
			err := errors.Join(w.gatherAndCheck(i, "quick", round), waits["a comparison"](p),
				w.exchangeAndCheck(i, driver.LaneControl, round, []int{20, 3}))
			if err != nil {
				return err
			}
		}
		if i == 1 {
			close(over)
		}
		return <-result
	})
}

func testOrderOfNames(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	names := []string{"first", "second"}
	w.each(t, func(i int, _ control.Plane) error {
		results := make(chan error, len(names))
		for k := range names {
			name := names[(k+i)%2]
			if _, err := w.planes[i].Named(name, false); err != nil {
				return err
			}
			go func() {
				for round := range 50 {
					if err := w.gatherAndCheck(i, name, round); err != nil {
						results <- err
						return
					}
				}
				results <- nil
			}()
		}
		return errors.Join(<-results, <-results)
	})
}

func testBadNames(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	longest := strings.Repeat("n", driver.MaxValueName)
	w.each(t, func(i int, p control.Plane) error {
		for _, name := range []string{"", longest + "n"} {
			if _, err := p.Named(name, false); !errors.Is(err, driver.ErrInvalid) {
				return fmt.Errorf("a name of %d bytes: got %w, want ErrInvalid", len(name), err)
			}
		}
		for k := range driver.MaxValueNames - 1 {
			if _, err := p.Named(fmt.Sprint(k+i), false); err != nil { // differs by rank
				return err
			}
		}
		if err := w.gatherAndCheck(i, longest, 1); err != nil {
			return err
		}
		if _, err := p.Named("one more", false); !errors.Is(err, driver.ErrInvalid) {
			return fmt.Errorf("one name above the limit: got %w, want ErrInvalid", err)
		}
		return errors.Join(w.gatherAndCheck(i, "7", 1), checkOpen(p))
	})
}

func testValueCancelled(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := gather(ctx, w.planes[0], "alone", 1)
	checkError(t, "the canceled value", err, context.Canceled)
	checkError(t, "the cause", w.planes[0].Cause(), context.Canceled)
	_, err = gather(w.ctx, w.planes[1], "alone", 1)
	checkError(t, "the value of the other rank", err, driver.ErrFault)
	_, err = gather(w.ctx, w.planes[0], "alone", 1)
	checkError(t, "the next value", err, context.Canceled)
}

func testValueClosed(t *testing.T, join Join) {
	w := newWorld(t, join, 1, patience)
	n, err := w.planes[0].Named("kept", false)
	must(t, err)
	must(t, w.planes[0].Close())
	checkError(t, "Gather", n.Gather(w.ctx, driver.Words{}, make([]driver.Words, 1)),
		driver.ErrClosed)
	_, err = w.planes[0].Named("kept", false)
	checkError(t, "Named", err, driver.ErrClosed)
}

func testOrdered(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	errs := w.outcomes(func(i int, p control.Plane) error {
		if i == 1 {
			return p.Await(w.ctx, unfinishedWait(p.Submit()))
		}
		n, err := p.Named("in order", true)
		if err != nil {
			return err
		}
		return n.Gather(w.ctx, driver.Words{}, make([]driver.Words, 2))
	})
	if !errors.As(errs[0], new(*driver.DeadlockError)) {
		t.Errorf("got %v, want a DeadlockError", errs[0])
	}
	if !errors.Is(errs[1], driver.ErrFault) {
		t.Errorf("the rank in the collective got %v, want ErrFault", errs[1])
	}
}
