package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

func post(track track, step uint64) message {
	return message{kind: kindPost, track: track, step: step, payload: []byte{byte(step)}}
}

func TestStepsComeOneAfterTheOther(t *testing.T) {
	for name, c := range map[string]struct {
		messages []message
		good     int // how many are taken
	}{
		"in order on every track": {[]message{
			post(trackControl, 1), post(trackCompare, 1), post(trackControl, 2),
			post(trackBackground, 1),
		}, 4},
		"a step that is left out":   {[]message{post(trackControl, 1), post(trackControl, 3)}, 1},
		"a step that comes twice":   {[]message{post(trackControl, 1), post(trackControl, 1)}, 1},
		"a first step that is none": {[]message{post(trackControl, 0)}, 0},
		"a rank that runs ahead": {[]message{
			post(trackControl, 1), post(trackControl, 2), post(trackControl, 3),
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := row{}
			for i, m := range c.messages {
				err := r.apply(m, time.Now())
				if i < c.good && err != nil {
					t.Errorf("message %d: %v", i, err)
				}
				if i >= c.good && !errors.Is(err, ErrProtocol) {
					t.Errorf("message %d: got %v, want ErrProtocol", i, err)
				}
			}
		})
	}
}

func TestPostsAreTakenInOrder(t *testing.T) {
	r := row{}
	for step := uint64(1); step < 100; step++ {
		if err := r.apply(post(trackControl, step), time.Now()); err != nil {
			t.Fatal(err)
		}
		if step == 1 {
			continue
		}
		if got := r.take(trackControl); got[0] != byte(step-1) {
			t.Fatalf("took step %d, want %d", got[0], step-1)
		}
	}
}

func TestLogOfFaultsIsBounded(t *testing.T) {
	for name, c := range map[string]struct{ bytes, room int }{
		"large reports": {driver.MaxPayload, 2},
		"small reports": {1, mostReports},
	} {
		t.Run(name, func(t *testing.T) {
			r := row{}
			m := message{kind: kindReport, payload: make([]byte, c.bytes)}
			for i := range c.room {
				if err := r.apply(m, time.Now()); err != nil {
					t.Fatalf("report %d: %v", i, err)
				}
			}
			if err := r.apply(m, time.Now()); !errors.Is(err, ErrProtocol) {
				t.Errorf("one more: got %v, want ErrProtocol", err)
			}
			for range c.room {
				if _, ok := r.next(); !ok {
					t.Fatal("a report is missing")
				}
			}
			if _, ok := r.next(); ok {
				t.Error("there is a report more than were made")
			}
		})
	}
}

func TestActivities(t *testing.T) {
	now := time.Now()
	since := now.Add(-3 * time.Second)
	for want, r := range map[string]row{
		"in no call of this group, after 7 collectives": {board: board{submitted: 7}},
		"in an agreement for 3s, after 7 collectives":   {board: board{7, 0, 0, 4, since}},
		"in Broadcast 7 for 3s":                         {board: board{7, 7, driver.Broadcast, 4, since}},
		"has left the group":                            {board: board{submitted: 7}, left: true},
		"in Operation(?) 9 for 3s":                      {board: board{7, 9, 200, 0, since}},
	} {
		if got := r.describe(now); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
