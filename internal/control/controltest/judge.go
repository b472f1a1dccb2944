package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Payload returns the bytes that a rank sends in a round of exchanges.
func Payload(rank, round, size int) []byte {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(7*i + 31*rank + 101*round) // each odd factor makes neighbors differ
	}

	return payload
}

// ExchangeAndCheck passes this rank's Payload to exchange, which has to return the Payloads of all
// ranks. rank is a group rank, and sizes holds the payload sizes by group rank.
func ExchangeAndCheck(
	exchange func(payload []byte) ([][]byte, error), rank, round int, sizes []int,
) error {
	ownPayload := Payload(rank, round, sizes[rank])
	received, err := exchange(ownPayload)
	if err != nil {
		return err
	}

	if len(received) != len(sizes) {
		return fmt.Errorf("round %d: got %d payloads, want %d", round, len(received), len(sizes))
	}

	for sender, got := range received {
		want := Payload(sender, round, sizes[sender])
		if !bytes.Equal(got, want) {
			return fmt.Errorf("round %d: wrong payload of %d bytes from group rank %d, want %d bytes",
				round, len(got), sender, len(want))
		}
	}

	return nil
}

// CheckReports checks the fault reports that a rank received in an exchange after a failure. Each
// rank that is set in presentRanks has sent Payload(sender, 1, size), and the others nothing.
func CheckReports(reports [][]byte, rank, size int, presentRanks []bool) error {
	const round = 1
	for sender, isPresent := range presentRanks {
		report := reports[sender]
		if !isPresent && report != nil {
			return fmt.Errorf("rank %d got a report from rank %d, which is absent", rank, sender)
		}

		if isPresent && !bytes.Equal(report, Payload(sender, round, size)) {
			return fmt.Errorf("rank %d got a wrong report of %d bytes from rank %d, want %d bytes",
				rank, len(report), sender, size)
		}
	}

	return nil
}

// CountTimeouts checks the error of a rank that waited for lateRank. It returns the number of
// TimeoutErrors about lateRank in err: 1, or 0 for the two other correct errors.
//
//   - ErrFault: another rank timed out first.
//   - A TimeoutError without missing ranks: this rank began to wait after the deadline.
func CountTimeouts(t testing.TB, err error, lateRank int) int {
	t.Helper()
	if timeout, ok := errors.AsType[*driver.TimeoutError](err); ok {
		hadNoTime := len(timeout.Missing) == 0 && len(timeout.Activity) == 1
		if hadNoTime {
			return 0
		}

		isAboutLateRank := slices.Equal(timeout.Missing, []int{lateRank})
		if !isAboutLateRank || timeout.Activity[lateRank] == "" {
			t.Errorf("got %v, want a TimeoutError about rank %d and its activity", timeout, lateRank)
		}

		return 1
	}

	if !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want a TimeoutError or ErrFault", err)
	}

	return 0
}

// CheckDeadlocks checks the errors of ranks that waited for each other: at least one DeadlockError,
// and ErrFault on ranks that noticed the failure of another rank first.
func CheckDeadlocks(t testing.TB, errs []error) {
	t.Helper()
	deadlocks := 0
	for _, err := range errs {
		deadlock, isDeadlock := errors.AsType[*driver.DeadlockError](err)
		isFault := errors.Is(err, driver.ErrFault)
		switch {
		case isDeadlock:
			deadlocks++
			if len(deadlock.Activity) == 0 || deadlock.InCall == "" {
				t.Errorf("%#v does not show what the other ranks were doing", deadlock)
			}
		case !isFault:
			t.Errorf("got %v, want a DeadlockError or ErrFault", err)
		}
	}

	if deadlocks == 0 {
		t.Error("no rank got a DeadlockError")
	}
}
