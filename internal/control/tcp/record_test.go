package tcp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// post returns a message whose payload is the step as a single byte.
func post(track track, step uint64) message {
	return message{kind: kindPost, track: track, step: step, payload: []byte{byte(step)}}
}

// valueTrack returns the track of a named value.
func valueTrack(name string) track { return valuePrefix + track(name) }

// A rank posts the steps of each track in order, and at most two that this rank has not read.
func TestOnlyStepsInOrderAreAccepted(t *testing.T) {
	const anyStep = 7
	var tooManyNames []message
	for i := range driver.MaxValueNames + 1 {
		name := fmt.Sprint(i)
		tooManyNames = append(tooManyNames, post(valueTrack(name), 1))
	}

	failure := message{
		kind: kindFail, step: uint64(control.FailedItself), payload: anyStatus(),
	}
	for name, c := range map[string]struct {
		acceptedCount int // the messages after these are rejected
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
		"any step after a failure": {
			acceptedCount: 2,
			messages:      []message{failure, post(valueTrack("a"), anyStep)},
		},
	} {
		t.Run(name, func(t *testing.T) { checkAccepted(t, c.messages, c.acceptedCount) })
	}
}

func checkAccepted(t *testing.T, messages []message, acceptedCount int) {
	t.Helper()
	r := rankRecord{}
	for i, m := range messages {
		err := r.applyMessage(m, time.Now())
		wantAccepted := i < acceptedCount
		if wantAccepted && err != nil {
			t.Errorf("message %d: got error %v, want none", i, err)
		}

		if !wantAccepted && !errors.Is(err, ErrProtocol) {
			t.Errorf("message %d: got error %v, want ErrProtocol", i, err)
		}
	}
}

func TestPostsAreConsumedInOrder(t *testing.T) {
	r := rankRecord{}
	const lastStep = 99
	for step := uint64(1); step <= lastStep; step++ {
		if err := r.applyMessage(post(trackControl, step), time.Now()); err != nil {
			t.Fatal(err)
		}

		if step == 1 {
			continue // so that two payloads are stored before each takePost
		}

		oldest := byte(step - 1)
		payload := r.tracks[trackControl].takePost()
		if payload[0] != oldest {
			t.Fatalf("takePost returned step %d, want %d", payload[0], oldest)
		}
	}
}

// Reports about failures stay in memory after they are read, so their number and size are limited.
func TestFaultReportsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		size     int // of each report in bytes
		capacity int // accepted reports
	}{
		"large reports": {size: driver.MaxPayload, capacity: 2}, // maxReportBytes in all
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

// The step of a kindFail is a control.Reason.
func TestRecordHoldsFailureReason(t *testing.T) {
	for step, want := range map[uint64]control.Reason{
		0: control.FailedItself, // not a reason, but a faulty rank may send it
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

// Before kindFail, a rank announces the last completed step of each track with kindComplete.
func TestRecordHoldsStepsCompletedBeforeFailure(t *testing.T) {
	r := rankRecord{}
	for _, m := range []message{
		post(trackControl, 1),
		post(valueTrack("a"), 1),
		{kind: kindComplete, track: trackControl, step: 1},
		{kind: kindComplete, track: valueTrack("a"), step: 1},
		{kind: kindComplete, track: valueTrack("never posted"), step: 1},
		{kind: kindFail, step: uint64(control.FailedItself), payload: anyStatus()},
	} {
		if err := r.applyMessage(m, time.Now()); err != nil {
			t.Fatal(err)
		}
	}

	for track, want := range map[track]bool{
		trackControl:    true,
		valueTrack("a"): true,
		trackCompare:    false, // no kindComplete above
		valueTrack("b"): false,
	} {
		step1 := &waitState{track: track, step: 1}
		if got := r.state(step1, time.Now()).Completed; got != want {
			t.Errorf("track %q: Completed = %v for step 1, want %v", track, got, want)
		}
	}
}
