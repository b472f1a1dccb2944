package nccl

import (
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// TestCallsAreAnnouncedBeforeTheyAreRecorded checks that a rank announces a call before the history
// records it. Once a call is recorded, the watcher may find a mismatch and fail the group, and the
// other ranks then look for this rank's announcement.
func TestCallsAreAnnouncedBeforeTheyAreRecorded(t *testing.T) {
	if !isOneMachine() {
		t.Skip("not supported here: ranks of several machines do not announce their calls")
	}

	w := newGroup(t, 2, time.Minute)
	var announced, late atomic.Int64
	for _, r := range w.ranks {
		c := r.group.(*communicator)
		c.SetCheck(true)
		c.direct.announcements = &announcementSpy{c.direct.announcements, c, &announced, &late}
	}

	for _, err := range w.each(func(m *testRank) error {
		return m.launch(m.stream, driver.Call{Operation: driver.Barrier})
	}) {
		if err != nil {
			t.Error(err)
		}
	}

	if announced.Load() != 2 || late.Load() != 0 {
		t.Errorf("got %d announcements, %d of them after the call was recorded; want 2 and 0",
			announced.Load(), late.Load())
	}
}

// announcementSpy counts announcements. announced counts all of them, and late counts those that
// are made after the history has recorded the call.
type announcementSpy struct {
	control.Announcements
	c               *communicator
	announced, late *atomic.Int64
}

func (s *announcementSpy) Announce(ticket, digest uint64) {
	s.announced.Add(1)
	if last, _ := s.c.history.lastCall(); last >= ticket {
		s.late.Add(1)
	}

	s.Announcements.Announce(ticket, digest)
}
