package tcp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rankRecord holds what a rank knows about another rank, from its messages.

// post returns the message with which a rank posts its payload for a step of a track. The payload
// is the step.
func post(track track, step uint64) message {
	return message{kind: kindPost, track: track, step: step, payload: []byte{byte(step)}}
}

// valueTrack returns the track on which ranks gather the values with a name.
func valueTrack(name string) track { return valuePrefix + track(name) }

// Each track is a sequence of steps from 1. A rank may be one step ahead of the others, so its
// record holds up to two posts that were not read.
func TestOnlyStepsInOrderAreAccepted(t *testing.T) {
	var tooManyNames []message
	for i := range driver.MaxValueNames + 1 {
		tooManyNames = append(tooManyNames, post(valueTrack(fmt.Sprint(i)), 1))
	}

	// The payload of a kindFail is a status, of which only the size matters here.
	failure := message{kind: kindFail, step: uint64(control.FailedItself), payload: anyStatus()}
	for name, c := range map[string]struct {
		acceptedCount int // number of messages before the first error
		messages      []message
	}{
		"in order on every track": {
			acceptedCount: 4,
			messages: []message{
				post(trackControl, 1), post(trackCompare, 1), post(trackControl, 2),
				post(trackBackground, 1),
			},
		},
		"a missing step": {
			acceptedCount: 1,
			messages:      []message{post(trackControl, 1), post(trackControl, 3)},
		},
		"a repeated step": {
			acceptedCount: 1,
			messages:      []message{post(trackControl, 1), post(trackControl, 1)},
		},
		"step 0": {
			acceptedCount: 0,
			messages:      []message{post(trackControl, 0)},
		},
		"a rank that is too far ahead": {
			acceptedCount: 2,
			messages: []message{
				post(trackControl, 1), post(trackControl, 2), post(trackControl, 3),
			},
		},
		"in order for each name": {
			acceptedCount: 3,
			messages: []message{
				post(valueTrack("a"), 1), post(valueTrack("b"), 1), post(valueTrack("a"), 2),
			},
		},
		"too many names": {
			acceptedCount: driver.MaxValueNames,
			messages:      tooManyNames,
		},
		"any step after a fault": { // is ignored
			acceptedCount: 2,
			messages:      []message{failure, post(valueTrack("a"), 7)},
		},
	} {
		t.Run(name, func(t *testing.T) { checkAccepted(t, c.messages, c.acceptedCount) })
	}
}

// checkAccepted applies messages to the record of one rank. It fails the test unless the record
// accepts the first acceptedCount and rejects the others.
func checkAccepted(t *testing.T, messages []message, acceptedCount int) {
	t.Helper()
	r := rankRecord{}
	for i, m := range messages {
		err := r.applyMessage(m, time.Now())
		if i < acceptedCount && err != nil {
			t.Errorf("message %d: got error %v, want none", i, err)
		}

		if i >= acceptedCount && !errors.Is(err, ErrProtocol) {
			t.Errorf("message %d: got error %v, want ErrProtocol", i, err)
		}
	}
}

// TestPostsAreConsumedInOrder takes each post only when the next has arrived, so that there are
// always one or two.
func TestPostsAreConsumedInOrder(t *testing.T) {
	r := rankRecord{}
	for step := uint64(1); step < 100; step++ {
		if err := r.applyMessage(post(trackControl, step), time.Now()); err != nil {
			t.Fatal(err)
		}

		if step == 1 {
			continue
		}

		payload := r.tracks[trackControl].takePost()
		if payload[0] != byte(step-1) {
			t.Fatalf("takePost returned step %d, want %d", payload[0], step-1)
		}
	}
}

// Fault reports stay in the record, so their number and their total size are limited.
func TestFaultReportsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		size     int // of each report in bytes
		capacity int // number of reports that are accepted
	}{
		"large reports": {size: driver.MaxPayload, capacity: 2}, // see maxReportBytes
		"small reports": {size: 1, capacity: maxReports},
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
				t.Errorf("one more report: got error %v, want ErrProtocol", err)
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

// The step of a kindFail is the number of a control.Reason.
func TestRecordHoldsFailureReason(t *testing.T) {
	for step, want := range map[uint64]control.Reason{
		0: control.FailedItself, // 0 is not a reason, but a peer may send it
		1: control.FailedItself,
		2: control.Aborted,
		3: control.FailedAfterPeer,
	} {
		r := rankRecord{}
		fail := message{kind: kindFail, step: step, payload: anyStatus()}
		if err := r.applyMessage(fail, time.Now()); err != nil {
			t.Errorf("kindFail %d: got error %v, want none", step, err)
		}

		if got := r.state(&waitState{}, time.Now()).Failed; got != want {
			t.Errorf("after kindFail %d: got reason %d, want %d", step, got, want)
		}
	}

	r := rankRecord{}
	unknownReason := uint64(control.FailedAfterPeer) + 1
	fail := message{kind: kindFail, step: unknownReason, payload: anyStatus()}
	if err := r.applyMessage(fail, time.Now()); !errors.Is(err, ErrProtocol) {
		t.Errorf("kindFail %d: got error %v, want ErrProtocol", unknownReason, err)
	}
}

// Before a rank announces that it has failed, it lists the steps that it has completed, one for
// each track. TestRecordHoldsStepsCompletedBeforeFailure checks RankState.Completed, with which
// another rank decides whether to wait for messages that are still in transit.
func TestRecordHoldsStepsCompletedBeforeFailure(t *testing.T) {
	r := rankRecord{}
	for _, m := range []message{
		post(trackControl, 1), post(valueTrack("a"), 1),
		{kind: kindComplete, track: trackControl, step: 1},
		{kind: kindComplete, track: valueTrack("a"), step: 1},
		{kind: kindComplete, track: valueTrack("unknown"), step: 9}, // ignored
		{kind: kindFail, step: uint64(control.FailedItself), payload: anyStatus()},
	} {
		if err := r.applyMessage(m, time.Now()); err != nil {
			t.Fatal(err)
		}
	}

	for name, want := range map[track]bool{
		trackControl: true, valueTrack("a"): true, // listed above
		trackCompare: false, valueTrack("b"): false,
	} {
		step1 := &waitState{track: name, step: 1}
		if got := r.state(step1, time.Now()).Completed; got != want {
			t.Errorf("track %q: Completed = %v for step 1, want %v", name, got, want)
		}
	}
}
