package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Payload returns the payload of a rank in a round. It differs for each rank and round.
func Payload(rank, round, size int) []byte {
	p := make([]byte, size)
	for at := range p {
		p[at] = byte(7*at + 31*rank + 101*round)
	}
	return p
}

// Swap exchanges the payload of a rank and checks the payloads of all ranks. sizes are by rank.
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

// WantReports checks the payloads that a rank got on the fault lane: those of round 1 from all
// present ranks, and none from the others.
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

// WantAbsence checks the error of a rank that has waited. It returns 1 if the error names the late
// rank, else 0.
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

// WantDeadlock checks the errors of ranks that waited in different calls: at least one is a
// DeadlockError that locates the others, and the rest are peer faults. Only the detection of the
// deadlock ends such waits before the test times out.
func WantDeadlock(t testing.TB, errs []error) {
	t.Helper()
	deadlocks := 0
	for _, err := range errs {
		if deadlock, ok := errors.AsType[*driver.DeadlockError](err); ok {
			deadlocks++
			if len(deadlock.Elsewhere) == 0 || deadlock.Doing == "" {
				t.Errorf("%#v does not locate the other ranks", deadlock)
			}
		} else if !errors.Is(err, driver.ErrFault) {
			t.Errorf("got %v, want a DeadlockError or ErrFault", err)
		}
	}
	if deadlocks == 0 {
		t.Error("no rank has a DeadlockError")
	}
}
