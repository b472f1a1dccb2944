package host

import (
	"errors"
	"testing"

	"symmem/driver"
)

// TestFailedResumeFailsGroup simulates a rank that cannot restore its access to a window.
func TestFailedResumeFailsGroup(t *testing.T) {
	pair := newRankPair(t)
	pair.connect()
	s := [2]*segment{pair.segment(0, 1), pair.segment(1, 1)}
	var windows [2]*window
	for _, err := range pair.runOnBoth(func(rank int) error {
		w, err := pair.groups[rank].Register(pair.ctx, driver.SegmentKey{}, s[rank])
		if err == nil {
			windows[rank] = w.(*window)
			err = windows[rank].Suspend()
		}

		return err
	}) {
		failIfErr(t, err)
	}

	errs := pair.runOnBoth(func(rank int) error {
		if rank == 0 {
			return windows[0].Resume(pair.ctx)
		}

		return windows[1].registry.agreeOnMapping(pair.ctx, "resuming a pool",
			errors.New("on purpose"))
	})
	if errs[0] == nil || pair.groups[0].Cause() == nil {
		t.Errorf("Resume = %v and Cause() = %v, want a fault", errs[0], pair.groups[0].Cause())
	}
}
