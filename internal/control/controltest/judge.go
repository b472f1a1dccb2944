package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Payload is what a rank of a group sends in a round: different bytes for each.
func Payload(rank, round, size int) []byte {
	p := make([]byte, size)
	for at := range p {
		p[at] = byte(7*at + 31*rank + 101*round)
	}
	return p
}

// Swap sends the payload of a rank, and wants those of all, whose sizes are given by rank.
func Swap(
	exchange func(payload []byte) ([][]byte, error), rank, round int, sizes []int,
) error {
	got, err := exchange(Payload(rank, round, sizes[rank]))
	if err != nil {
		return err
	}
	if len(got) != len(sizes) {
		return fmt.Errorf("got %d payloads, want %d", len(got), len(sizes))
	}
	for from, p := range got {
		if !bytes.Equal(p, Payload(from, round, sizes[from])) {
			return fmt.Errorf("round %d: payload of group rank %d has %d bytes, want %d, or differs",
				round, from, len(p), sizes[from])
		}
	}
	return nil
}

// WantReports checks what a rank got on the fault lane: the payloads of round 1 of all that are
// present, and nothing of the others.
func WantReports(got [][]byte, rank, size int, present []bool) error {
	for from, came := range present {
		if !came && got[from] != nil {
			return fmt.Errorf("rank %d has a report of rank %d, which is absent", rank, from)
		}
		if came && !bytes.Equal(got[from], Payload(from, 1, size)) {
			return fmt.Errorf("rank %d has a wrong report of rank %d: %d bytes of %d",
				rank, from, len(got[from]), size)
		}
	}
	return nil
}

// WantAbsence checks the error of a rank that has waited, and returns 1 if it names the late one.
func WantAbsence(t testing.TB, err error, late int) int {
	t.Helper()
	if missed, ok := errors.AsType[*driver.TimeoutError](err); ok {
		if !slices.Equal(missed.Missing, []int{late}) || missed.Activity[late] == "" {
			t.Errorf("%v: want rank %d and what it is doing", missed, late)
		}
		return 1
	}
	if !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want a TimeoutError or ErrFault", err)
	}
	return 0
}

// WantDeadlock checks the errors of ranks that were in different places: one at least says who is
// where, and the others that a peer has failed. Nothing but the proof that they can never meet ends
// such waits before the test gives up.
func WantDeadlock(t testing.TB, errs []error) {
	t.Helper()
	found := 0
	for _, err := range errs {
		if deadlock, ok := errors.AsType[*driver.DeadlockError](err); ok {
			found++
			if len(deadlock.Elsewhere) == 0 || deadlock.Doing == "" {
				t.Errorf("%#v does not say who is where", deadlock)
			}
		} else if !errors.Is(err, driver.ErrFault) {
			t.Errorf("got %v, want a DeadlockError or ErrFault", err)
		}
	}
	if found == 0 {
		t.Error("no rank has a DeadlockError")
	}
}
