package tcp

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rankRecord contains the latest data that this rank has received from another rank. For example,
// the other rank posts payloads for steps 1 and 2 of trackControl: it sends two messages of
// kindPost. The record keeps each payload until takePost returns it.
//
// A track is a sequence of steps from 1. The other rank posts step 2 only when it has the posts of
// all ranks for step 1. So it is at most one step ahead of this rank, and the record of a track
// never has to keep more than two payloads.

// post returns the message with which a rank posts its payload for a step. The payload is a byte
// with the number of the step.
func post(track track, step uint64) message {
	return message{kind: kindPost, track: track, step: step, payload: []byte{byte(step)}}
}

// valueTrack returns the track on which ranks gather the values with a name.
func valueTrack(name string) track { return valuePrefix + track(name) }

// TestOnlyStepsInOrderAreAccepted checks that the record rejects posts that a correct rank does not
// send: steps that are missing, repeated or too far ahead, and posts on too many tracks.
func TestOnlyStepsInOrderAreAccepted(t *testing.T) {
	var tooManyNames []message
	for i := range driver.MaxValueNames + 1 {
		name := fmt.Sprint(i)
		tooManyNames = append(tooManyNames, post(valueTrack(name), 1))
	}

	// kindFail announces that the rank has failed. Its step is the reason.
	failure := message{kind: kindFail, step: uint64(control.FailedItself), payload: anyStatus()}
	for name, c := range map[string]struct {
		acceptedCount int // number of messages before the first that is rejected
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
		"any step after a failure": { // is ignored
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
		wantAccepted := i < acceptedCount
		if wantAccepted && err != nil {
			t.Errorf("message %d: got error %v, want none", i, err)
		}

		if !wantAccepted && !errors.Is(err, ErrProtocol) {
			t.Errorf("message %d: got error %v, want ErrProtocol", i, err)
		}
	}
}

// TestPostsAreConsumedInOrder takes the payload of each step only when that of the next step has
// arrived. takePost must return the payloads in the order of the steps.
func TestPostsAreConsumedInOrder(t *testing.T) {
	r := rankRecord{}
	for step := uint64(1); step < 100; step++ {
		if err := r.applyMessage(post(trackControl, step), time.Now()); err != nil {
			t.Fatal(err)
		}

		if step == 1 { // there is no earlier step
			continue
		}

		payload := r.tracks[trackControl].takePost()
		if payload[0] != byte(step-1) {
			t.Fatalf("takePost returned step %d, want %d", payload[0], step-1)
		}
	}
}

// After a failure, ranks send each other reports. They stay in the record, so their number and
// their total size are limited. The record must reject one more report than the limit.
func TestFaultReportsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		size     int // of each report in bytes
		capacity int // number of reports that are accepted
	}{
		"large reports": {size: driver.MaxPayload, capacity: 2}, // maxReportBytes is twice as large
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

// A message of kindFail announces that a rank has failed. Its step is the reason, the number of a
// control.Reason. The record must show the reason, and reject an unknown one.
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

// Before a rank announces that it has failed, it sends a message of kindComplete for each track.
// Its step is the last one that the rank has completed. RankState.Completed then reports whether
// the rank has completed a given step, here step 1.
func TestRecordHoldsStepsCompletedBeforeFailure(t *testing.T) {
	r := rankRecord{}
	for _, m := range []message{
		post(trackControl, 1),
		post(valueTrack("a"), 1),
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
		trackControl:    true,
		valueTrack("a"): true,
		trackCompare:    false, // no kindComplete above
		valueTrack("b"): false,
	} {
		step1 := &waitState{track: name, step: 1}
		if got := r.state(step1, time.Now()).Completed; got != want {
			t.Errorf("track %q: Completed = %v for step 1, want %v", name, got, want)
		}
	}
}
