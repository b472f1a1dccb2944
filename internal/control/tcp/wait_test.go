package tcp

import (
	"testing"
	"time"

	"symmem/driver"
)

// TestWarningThatIsDueDoesNotSpin waits for a rank that is late enough for a warning, while
// messages may be unread because this process was stopped. Until they have been read, no warning is
// issued. The wait must pause meanwhile instead of asking again and again.
func TestWarningThatIsDueDoesNotSpin(t *testing.T) {
	now := time.Now()
	s := groupState{records: make([]rankRecord, 2)}
	s.stallDetector.tick(now) // the first tick after a long time: messages may be unread
	s.cfg.Group.Ranks = []int{0, 1}
	s.cfg.Late = driver.Late{
		After: time.Second,
		Warn:  func(driver.LateWarning) { t.Error("a warning was issued") },
	}
	w := &waitState{
		callText: func() string { return "call" },
		track:    trackControl,
		step:     1,
		begin:    now.Add(-time.Minute),
		timeout:  time.Hour,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := continueWait(t.Context(), &s, w)
	if err != nil {
		t.Fatal(err)
	}

	const minPause = statusInterval / 2
	pause := time.Since(now)
	if pause < minPause {
		t.Errorf("the wait continued after %v, want at least %v", pause, minPause)
	}
}
