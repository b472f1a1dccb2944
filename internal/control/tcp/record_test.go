package tcp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// post returns a kindPost whose payload is the step.
func post(track track, step uint64) message {
	return message{kind: kindPost, track: track, step: step, payload: []byte{byte(step)}}
}

func valueTrack(name string) track { return valuePrefix + track(name) }

func TestOnlyStepsInOrderAreAccepted(t *testing.T) {
	var tooManyNames []message
	for i := range driver.MaxValueNames + 1 {
		tooManyNames = append(tooManyNames, post(valueTrack(fmt.Sprint(i)), 1))
	}
	failure := message{kind: kindFail, step: 1, payload: anyStatus()}
	for name, c := range map[string]struct {
		messages      []message
		acceptedCount int
	}{
		"in order on every track": {[]message{
			post(trackControl, 1), post(trackCompare, 1), post(trackControl, 2),
			post(trackBackground, 1),
		}, 4},
		"a missing step":  {[]message{post(trackControl, 1), post(trackControl, 3)}, 1},
		"a repeated step": {[]message{post(trackControl, 1), post(trackControl, 1)}, 1},
		"step 0":          {[]message{post(trackControl, 0)}, 0},
		"a rank that is too far ahead": {[]message{
			post(trackControl, 1), post(trackControl, 2), post(trackControl, 3),
		}, 2},
		"in order for each name": {[]message{
			post(valueTrack("a"), 1), post(valueTrack("b"), 1), post(valueTrack("a"), 2),
		}, 3},
		"too many names":         {tooManyNames, driver.MaxValueNames},
		"any step after a fault": {[]message{failure, post(valueTrack("a"), 7)}, 2},
	} {
		t.Run(name, func(t *testing.T) { checkAccepted(t, c.messages, c.acceptedCount) })
	}
}

// checkAccepted applies messages to a record. It must accept the first acceptedCount and reject
// the others.
func checkAccepted(t *testing.T, messages []message, acceptedCount int) {
	t.Helper()
	r := rankRecord{}
	for i, m := range messages {
		err := r.applyMessage(m, time.Now())
		if i < acceptedCount && err != nil {
			t.Errorf("message %d: got %v, want no error", i, err)
		}
		if i >= acceptedCount && !errors.Is(err, ErrProtocol) {
			t.Errorf("message %d: got %v, want ErrProtocol", i, err)
		}
	}
}

// TestPostsAreConsumedInOrder takes each post only when the next has arrived.
func TestPostsAreConsumedInOrder(t *testing.T) {
	r := rankRecord{}
	for step := uint64(1); step < 100; step++ {
		if err := r.applyMessage(post(trackControl, step), time.Now()); err != nil {
			t.Fatal(err)
		}
		if step == 1 {
			continue
		}
		if got := r.tracks[trackControl].takePost(); got[0] != byte(step-1) {
			t.Fatalf("takePost returned step %d, want %d", got[0], step-1)
		}
	}
}

func TestFaultReportsAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ size, capacity int }{
		"large reports": {driver.MaxPayload, 2},
		"small reports": {1, maxReports},
	} {
		t.Run(name, func(t *testing.T) {
			r := rankRecord{}
			m := message{kind: kindReport, payload: make([]byte, c.size)}
			for i := range c.capacity {
				if err := r.applyMessage(m, time.Now()); err != nil {
					t.Fatalf("report %d: %v", i, err)
				}
			}
			if err := r.applyMessage(m, time.Now()); !errors.Is(err, ErrProtocol) {
				t.Errorf("one more report: got %v, want ErrProtocol", err)
			}
			for range c.capacity {
				if _, ok := r.nextReport(); !ok {
					t.Fatal("nextReport() = false before all reports were read, want true")
				}
			}
			if _, ok := r.nextReport(); ok {
				t.Error("nextReport() = true after all reports were read, want false")
			}
		})
	}
}

func TestRecordHoldsFailureReason(t *testing.T) {
	// A peer may send 0, which is not a reason of a failure.
	for step, want := range map[uint64]control.Reason{
		0: control.FailedItself, 1: control.FailedItself, 2: control.Aborted,
		3: control.FailedAfterPeer,
	} {
		r := rankRecord{}
		err := r.applyMessage(message{kind: kindFail, step: step, payload: anyStatus()}, time.Now())
		if got := r.state(&waitState{}, time.Now()); err != nil || got.Failed != want {
			t.Errorf("after kindFail %d: got reason %d, error %v; want reason %d",
				step, got.Failed, err, want)
		}
	}
	r := rankRecord{}
	unknownReason := uint64(control.FailedAfterPeer) + 1
	fail := message{kind: kindFail, step: unknownReason, payload: anyStatus()}
	if err := r.applyMessage(fail, time.Now()); !errors.Is(err, ErrProtocol) {
		t.Errorf("an unknown reason: got %v, want ErrProtocol", err)
	}
}

// TestRecordHoldsStepsCompletedBeforeFailure checks RankState.Completed, with which a rank decides
// whether to wait for messages that are still in transit.
func TestRecordHoldsStepsCompletedBeforeFailure(t *testing.T) {
	r := rankRecord{}
	for _, m := range []message{
		post(trackControl, 1), post(valueTrack("a"), 1),
		{kind: kindComplete, track: trackControl, step: 1},
		{kind: kindComplete, track: valueTrack("a"), step: 1},
		{kind: kindComplete, track: valueTrack("unknown"), step: 9},
		{kind: kindFail, step: 1, payload: anyStatus()},
	} {
		if err := r.applyMessage(m, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	for track, want := range map[track]bool{
		trackControl: true, trackCompare: false, valueTrack("a"): true, valueTrack("b"): false,
	} {
		if got := r.state(&waitState{track: track, step: 1}, time.Now()).Completed; got != want {
			t.Errorf("track %q: Completed = %v, want %v", track, got, want)
		}
	}
}
