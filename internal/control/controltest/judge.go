package controltest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkError(t *testing.T, callName string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", callName, err, target)
	}
}

func checkOpen(p control.Plane) error {
	select {
	case <-p.Failed():
		return fmt.Errorf("the plane has failed: %w", p.Cause())
	default:
		return p.Cause() // nil for an open plane
	}
}

// CountTimeouts returns 1 for a TimeoutError about lateRank, and 0 for the other errors that a wait
// for lateRank can return:
//
//   - ErrFault, if another rank timed out first
//   - a TimeoutError without missing ranks, if the rank called too late
func CountTimeouts(t testing.TB, err error, lateRank int) int {
	t.Helper()
	timeout, isTimeout := errors.AsType[*driver.TimeoutError](err)
	if !isTimeout {
		if !errors.Is(err, driver.ErrFault) {
			t.Errorf("got %v, want a TimeoutError or ErrFault", err)
		}

		return 0
	}

	isAboutCaller := len(timeout.Missing) == 0 && len(timeout.Activity) == 1
	if isAboutCaller {
		return 0
	}

	isAboutLateRank := slices.Equal(timeout.Missing, []int{lateRank})
	isActivityKnown := timeout.Activity[lateRank] != ""
	if !isAboutLateRank || !isActivityKnown {
		t.Errorf("got %v, want a TimeoutError about rank %d and its activity", timeout, lateRank)
	}

	return 1
}

// CheckDeadlocks checks that at least one error is a DeadlockError, and that the others match
// ErrFault.
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

// checkDeadlockAbout checks that err is a DeadlockError that describes the activity of exactly the
// given world ranks.
func checkDeadlockAbout(t *testing.T, err error, ranks ...int) {
	t.Helper()
	deadlock, ok := errors.AsType[*driver.DeadlockError](err)
	if !ok || len(deadlock.Activity) != len(ranks) {
		t.Errorf("got %v, want a DeadlockError about world ranks %v", err, ranks)
		return
	}

	for _, r := range ranks {
		if deadlock.Activity[r] == "" {
			t.Errorf("got %v, want an error about world rank %d", err, r)
		}
	}
}

// checkPeerError checks that err is a PeerError about one world rank, and that its text names the
// rank.
func checkPeerError(t *testing.T, err error, rank int) {
	t.Helper()
	peerErr, isPeerError := errors.AsType[*driver.PeerError](err)
	isAboutRank := isPeerError && slices.Equal(peerErr.Ranks, []int{rank})
	if !isAboutRank || !strings.Contains(err.Error(), fmt.Sprintf("world rank %d", rank)) {
		t.Errorf("got %v, want a PeerError about world rank %d", err, rank)
	}
}

// KindOf returns a word for the kind of a fault, and the ranks that the error is about.
func KindOf(err error) (kind string, ranks []int) {
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	var deadlock *driver.DeadlockError
	switch {
	case errors.As(err, &deadlock):
		return "deadlock", slices.Sorted(maps.Keys(deadlock.Activity))
	case errors.As(err, &lost):
		return "lost", lost.Ranks
	case errors.As(err, &late):
		return "late", late.Missing
	case errors.Is(err, driver.ErrFault):
		return "fault", nil
	}

	return "other", nil
}
