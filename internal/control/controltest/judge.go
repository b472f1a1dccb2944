package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Payload returns a payload that differs for each rank and round.
func Payload(rank, round, size int) []byte {
	p := make([]byte, size)
	for at := range p {
		p[at] = byte(7*at + 31*rank + 101*round)
	}
	return p
}

// Swap exchanges a rank's payload of a round and checks the payloads of all ranks, whose sizes are
// in sizes.
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
			return fmt.Errorf("round %d: the payload of group rank %d is wrong: %d bytes, want %d",
				round, from, len(p), sizes[from])
		}
	}
	return nil
}

// WantReports checks the payloads that a rank has received on the fault lane. Each present rank
// must have sent a payload of round 1, and absent ranks nothing.
func WantReports(got [][]byte, rank, size int, present []bool) error {
	for from, reported := range present {
		if !reported && got[from] != nil {
			return fmt.Errorf("rank %d has a report of rank %d, which is absent", rank, from)
		}
		if reported && !bytes.Equal(got[from], Payload(from, 1, size)) {
			return fmt.Errorf("rank %d has a wrong report of rank %d: %d bytes, want %d",
				rank, from, len(got[from]), size)
		}
	}
	return nil
}

// WantAbsence checks the error of a wait for a late rank: a TimeoutError that names the rank, or
// another rank's fault. It returns 1 for a TimeoutError and otherwise 0.
func WantAbsence(t testing.TB, err error, late int) int {
	t.Helper()
	if timeout, ok := errors.AsType[*driver.TimeoutError](err); ok {
		if !slices.Equal(timeout.Missing, []int{late}) || timeout.Activity[late] == "" {
			t.Errorf("got %v, want an error that names rank %d and its activity", timeout, late)
		}
		return 1
	}
	if !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want a TimeoutError or ErrFault", err)
	}
	return 0
}

// WantDeadlock checks the errors of ranks that waited for each other in different calls. At least
// one must be a DeadlockError that locates the other ranks. The rest must be faults of peers. Only
// deadlock detection ends the waits before the test times out.
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
