package controltest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

// Tests of exchanges send payloads whose contents are known. For example, Payload(2, 5, 100)
// returns the 100 bytes that rank 2 sends in round 5. So each rank can check what it receives from
// rank 2. Other functions judge the errors of ranks when one of them is late, or waits in another
// call than the others.

// Payload returns a test payload of the given size in bytes. Its contents depend on the rank and
// the round, the number of the exchange.
func Payload(rank, round, size int) []byte {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(7*i + 31*rank + 101*round) // odd factors, so that neighbors differ
	}

	return payload
}

// ExchangeAndCheck calls exchange with the Payload of a group rank. It checks that the results are
// the Payloads of all ranks. sizes holds the payload sizes by group rank.
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

// CheckReports checks the fault reports that a rank has received: messages that ranks exchange
// after a failure. reports and presentRanks have an entry for each rank. A rank that is present
// must have sent Payload(sender, 1, size). The other ranks must have sent nothing.
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

// CountTimeouts checks the error of a rank that waited for a late rank. It returns 1 for a
// TimeoutError about the late rank, so that callers can count these.
//
// It returns 0 for two other errors that are correct: ErrFault, if another rank has timed out
// first, and a TimeoutError without missing ranks, if the waiting rank had begun too late.
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

// CheckDeadlocks checks the errors of ranks that waited for each other. At least one must be a
// DeadlockError that describes the activity of other ranks. The others may match ErrFault.
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
