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
		payload[i] = byte(7*i + 31*rank + 101*round) // odd factors make neighbors differ
	}

	return payload
}

// ExchangeAndCheck passes this rank's Payload to exchange, and checks that exchange returns the
// Payloads of all ranks. rank is a group rank, and sizes holds the payload sizes by group rank.
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

// CheckReports checks the fault reports that a rank received after a failure. Each rank set in
// presentRanks has sent its Payload of round 1. The other ranks have sent nothing.
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

// CountTimeouts checks the error of a rank that waited for lateRank. It returns 1 for a
// TimeoutError about lateRank, and 0 for the two other correct errors:
//
//   - ErrFault, if another rank timed out first
//   - a TimeoutError without missing ranks, if this rank began to wait after its deadline
func CountTimeouts(t testing.TB, err error, lateRank int) int {
	t.Helper()
	if timeout, ok := errors.AsType[*driver.TimeoutError](err); ok {
		beganTooLate := len(timeout.Missing) == 0 && len(timeout.Activity) == 1
		if beganTooLate {
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

// CheckDeadlocks checks the errors of ranks that waited for each other. At least one must be a
// DeadlockError. Ranks that first noticed the failure of another rank get ErrFault.
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
