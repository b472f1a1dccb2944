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

// Gather exchanges Words between ranks. The n-th Gather for a name, such as "loss", matches the
// n-th Gather for this name on the other ranks.

var valueRequirements = []requirement{
	{"Gather returns the words of all ranks", testGatheredWords},
	{"a wait for values of one name does not block those of another name", testIndependentNames},
	{"ranks can gather values of two names in different orders", testOrderOfNames},
	{"invalid names are rejected without side effects", testInvalidNames},
	{"if the context is canceled, Gather returns and the plane fails", testCanceledGather},
	{"Gather and Named return ErrClosed after the plane is closed", testClosedGather},
	{"Gather of ordered values detects a deadlock with a rank in a collective", testOrderedValues},
}

// Arguments of Plane.Named. Gather of ordered values detects deadlocks with collectives.
const (
	unordered = false
	ordered   = true
)

func testGatheredWords(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		for round := range 100 {
			if err := g.gatherAndCheck(i, "one", round); err != nil {
				return err
			}

			if err := g.gatherAndCheck(i, "two", round); err != nil {
				return err
			}
		}

		return checkOpen(p)
	})
}

// gatherAndCheck checks that Gather on rank i returns the testWords of all ranks for a round.
func (g *localGroup) gatherAndCheck(i int, name string, round int) error {
	all, err := gather(g.ctx, g.planes[i], name, testWords(i, round))
	if err != nil {
		return err
	}

	for rank := range g.planes {
		if want := testWords(rank, round); all[rank] != want {
			return fmt.Errorf("%s %d: words of group rank %d = %v, want %v",
				name, round, rank, all[rank], want)
		}
	}

	return nil
}

func testWords(rank, round int) driver.Words {
	return driver.Words{uint64(rank), uint64(round), 2, 3, 4, ^uint64(round)}
}

// gather returns the words by group rank.
func gather(
	ctx context.Context, p control.Plane, name string, own driver.Words,
) ([]driver.Words, error) {
	value, err := p.Named(name, unordered)
	if err != nil {
		return nil, err
	}

	const maxRanks = 8 // more than any test has
	all := make([]driver.Words, maxRanks)
	err = value.Gather(ctx, own, all)
	return all, err
}

// Other gathers, exchanges and comparisons complete while rank 0 waits for the value "slow".
func testIndependentNames(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	gatherSlow := func(i int) error { return g.gatherAndCheck(i, "slow", 1) }
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		result := make(chan error, 1)
		if i == 0 {
			go func() { result <- gatherSlow(0) }()
		}

		payloadSizes := []int{20, 3} // by group rank
		for round := range 20 {
			gatherErr := g.gatherAndCheck(i, "quick", round)
			compareErr := waitFunctions["a comparison"](p)
			exchangeErr := g.checkExchange(i, driver.LaneControl, round, payloadSizes)
			if err := errors.Join(gatherErr, compareErr, exchangeErr); err != nil {
				return err
			}
		}

		if i == 1 {
			return gatherSlow(1)
		}

		return <-result
	})
}

func testOrderOfNames(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	names := [][]string{{"first", "second"}, {"second", "first"}} // by group rank
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		results := make(chan error, len(names[i]))
		for _, name := range names[i] {
			if _, err := p.Named(name, unordered); err != nil { // sets the order of names
				return err
			}

			go func() {
				for round := range 50 {
					if err := g.gatherAndCheck(i, name, round); err != nil {
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

func testInvalidNames(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	longest := strings.Repeat("n", driver.MaxValueName)
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		for _, name := range []string{"", longest + "n"} {
			if _, err := p.Named(name, unordered); !errors.Is(err, driver.ErrInvalid) {
				return fmt.Errorf("a name of %d bytes: got %w, want ErrInvalid", len(name), err)
			}
		}

		// Leave one name for longest. Names begin with "0" on rank 0, and with "1" on rank 1.
		for k := range driver.MaxValueNames - 1 {
			name := fmt.Sprint(i + k)
			if _, err := p.Named(name, unordered); err != nil {
				return err
			}
		}

		if err := g.gatherAndCheck(i, longest, 1); err != nil {
			return err
		}

		if _, err := p.Named("one more", unordered); !errors.Is(err, driver.ErrInvalid) {
			return fmt.Errorf("one name above the limit: got %w, want ErrInvalid", err)
		}

		const commonName = "7" // used by both ranks
		gatherErr := g.gatherAndCheck(i, commonName, 1)
		return errors.Join(gatherErr, checkOpen(p))
	})
}

func testCanceledGather(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	ctx, cancel := context.WithCancel(g.ctx)
	cancel()
	_, err := gather(ctx, g.planes[0], "alone", driver.Words{})
	checkError(t, "Gather with a canceled context", err, context.Canceled)
	checkError(t, "Cause", g.planes[0].Cause(), context.Canceled)
	_, err = gather(g.ctx, g.planes[1], "alone", driver.Words{})
	checkError(t, "Gather on the other rank", err, driver.ErrFault)
	_, err = gather(g.ctx, g.planes[0], "alone", driver.Words{})
	checkError(t, "Gather of the failed plane", err, context.Canceled)
}

func testClosedGather(t *testing.T, join Join) {
	g := newGroup(t, join, 1, hangTimeout)
	value, err := g.planes[0].Named("kept", unordered)
	must(t, err)
	must(t, g.planes[0].Close())
	err = value.Gather(g.ctx, driver.Words{}, make([]driver.Words, 1))
	checkError(t, "Gather", err, driver.ErrClosed)
	_, err = g.planes[0].Named("kept", unordered)
	checkError(t, "Named", err, driver.ErrClosed)
}

// Rank 0 waits in Gather, while rank 1 waits for a collective that rank 0 has not submitted.
func testOrderedValues(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	errs := g.runOnEach(func(i int, p control.Plane) error {
		if i == 1 {
			return p.Await(g.ctx, newEndlessWait(p.Submit()))
		}

		value, err := p.Named("in order", ordered)
		if err != nil {
			return err
		}

		return value.Gather(g.ctx, driver.Words{}, make([]driver.Words, 2))
	})
	if !errors.As(errs[0], new(*driver.DeadlockError)) {
		t.Errorf("the rank in Gather got %v, want a DeadlockError", errs[0])
	}

	if !errors.Is(errs[1], driver.ErrFault) {
		t.Errorf("the rank in the collective got %v, want ErrFault", errs[1])
	}
}
