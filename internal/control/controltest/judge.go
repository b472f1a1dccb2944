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
	for i := range p {
		p[i] = byte(7*i + 31*rank + 101*round)
	}
	return p
}

// ExchangeAndCheck exchanges Payload and checks all received payloads. sizes holds their sizes by
// rank.
func ExchangeAndCheck(
	exchange func(payload []byte) ([][]byte, error), rank, round int, sizes []int,
) error {
	got, err := exchange(Payload(rank, round, sizes[rank]))
	if err != nil {
		return err
	}
	if len(got) != len(sizes) {
		return fmt.Errorf("got %d payloads, want %d", len(got), len(sizes))
	}
	for sender, p := range got {
		if !bytes.Equal(p, Payload(sender, round, sizes[sender])) {
			return fmt.Errorf("round %d: wrong payload of %d bytes from group rank %d, want %d bytes",
				round, len(p), sender, sizes[sender])
		}
	}
	return nil
}

// CheckReports checks received fault reports: Payload for round 1 from each rank for which
// presentRanks is true, and nil from the others.
func CheckReports(got [][]byte, rank, size int, presentRanks []bool) error {
	for sender, isPresent := range presentRanks {
		if !isPresent && got[sender] != nil {
			return fmt.Errorf("rank %d has a report from rank %d, which is absent", rank, sender)
		}
		if isPresent && !bytes.Equal(got[sender], Payload(sender, 1, size)) {
			return fmt.Errorf("rank %d has a wrong report of %d bytes from rank %d, want %d bytes",
				rank, len(got[sender]), sender, size)
		}
	}
	return nil
}

// CountTimeouts returns 1 for a TimeoutError about the late rank, and 0 for another rank's fault or
// for a rank that had no time to wait, which names no rank.
func CountTimeouts(t testing.TB, err error, lateRank int) int {
	t.Helper()
	if timeout, ok := errors.AsType[*driver.TimeoutError](err); ok {
		if len(timeout.Missing) == 0 && len(timeout.Activity) == 1 {
			return 0
		}
		if !slices.Equal(timeout.Missing, []int{lateRank}) || timeout.Activity[lateRank] == "" {
			t.Errorf("got %v, want an error about rank %d and its activity", timeout, lateRank)
		}
		return 1
	}
	if !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want a TimeoutError or ErrFault", err)
	}
	return 0
}

// CheckDeadlocks requires a DeadlockError, with the activity of other ranks, from at least one of
// the ranks that waited for each other. The rest must match ErrFault.
func CheckDeadlocks(t testing.TB, errs []error) {
	t.Helper()
	deadlocks := 0
	for _, err := range errs {
		if deadlock, ok := errors.AsType[*driver.DeadlockError](err); ok {
			deadlocks++
			if len(deadlock.Activity) == 0 || deadlock.InCall == "" {
				t.Errorf("%#v does not show what the other ranks were doing", deadlock)
			}
		} else if !errors.Is(err, driver.ErrFault) {
			t.Errorf("got %v, want a DeadlockError or ErrFault", err)
		}
	}
	if deadlocks == 0 {
		t.Error("no rank got a DeadlockError")
	}
}
