package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Payload returns a test payload of the given size in bytes. Its contents depend on the rank and
// the round.
func Payload(rank, round, size int) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(7*i + 31*rank + 101*round)
	}
	return p
}

// ExchangeAndCheck calls exchange with the Payload of a group rank, and checks that the results
// are the Payloads of all ranks. sizes holds the payload sizes by group rank.
func ExchangeAndCheck(
	exchange func(payload []byte) ([][]byte, error), rank, round int, sizes []int,
) error {
	received, err := exchange(Payload(rank, round, sizes[rank]))
	if err != nil {
		return err
	}
	if len(received) != len(sizes) {
		return fmt.Errorf("round %d: got %d payloads, want %d", round, len(received), len(sizes))
	}
	for sender, p := range received {
		if !bytes.Equal(p, Payload(sender, round, sizes[sender])) {
			return fmt.Errorf("round %d: wrong payload of %d bytes from group rank %d, want %d bytes",
				round, len(p), sender, sizes[sender])
		}
	}
	return nil
}

// CheckReports checks the fault reports that a rank has received. Each rank for which presentRanks
// is true must have sent Payload(sender, 1, size), and the others nothing.
func CheckReports(reports [][]byte, rank, size int, presentRanks []bool) error {
	for sender, isPresent := range presentRanks {
		report := reports[sender]
		if !isPresent && report != nil {
			return fmt.Errorf("rank %d got a report from rank %d, which is absent", rank, sender)
		}
		if isPresent && !bytes.Equal(report, Payload(sender, 1, size)) {
			return fmt.Errorf("rank %d got a wrong report of %d bytes from rank %d, want %d bytes",
				rank, len(report), sender, size)
		}
	}
	return nil
}

// CountTimeouts checks the error of a rank that waited for a late rank, and returns 1 if it is a
// TimeoutError about the late rank. It returns 0 for ErrFault, because another rank may time out
// first, and for a TimeoutError that lists no missing rank, because its rank had no time to wait.
func CountTimeouts(t testing.TB, err error, lateRank int) int {
	t.Helper()
	if timeout, ok := errors.AsType[*driver.TimeoutError](err); ok {
		hadNoTime := len(timeout.Missing) == 0 && len(timeout.Activity) == 1
		if hadNoTime {
			return 0
		}
		if !slices.Equal(timeout.Missing, []int{lateRank}) || timeout.Activity[lateRank] == "" {
			t.Errorf("got %v, want a TimeoutError about rank %d and its activity", timeout, lateRank)
		}
		return 1
	}
	if !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want a TimeoutError or ErrFault", err)
	}
	return 0
}

// CheckDeadlocks checks the errors of ranks that waited for each other. At least one must be a
// DeadlockError that describes the activity of other ranks. The others may match ErrFault.
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
