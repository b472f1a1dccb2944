package host

import (
	"errors"
	"testing"

	"symmem/driver"
)

// TestFailedResumeFailsGroup simulates a rank that cannot restore its access to a window.
func TestFailedResumeFailsGroup(t *testing.T) {
	d := newRankPair(t)
	d.connect()
	s := [2]*segment{d.segment(0, 1), d.segment(1, 1)}
	var windows [2]*window
	for _, err := range d.runOnBoth(func(rank int) error {
		w, err := d.groups[rank].Register(d.ctx, driver.SegmentKey{}, s[rank])
		if err == nil {
			windows[rank] = w.(*window)
			err = windows[rank].Suspend()
		}

		return err
	}) {
		failIfErr(t, err)
	}

	errs := d.runOnBoth(func(rank int) error {
		if rank == 0 {
			return windows[0].Resume(d.ctx)
		}

		return windows[1].registry.agreeOnMapping(d.ctx, "resuming a pool",
			errors.New("on purpose"))
	})
	if errs[0] == nil || d.groups[0].Cause() == nil {
		t.Errorf("Resume = %v and Cause() = %v, want a fault", errs[0], d.groups[0].Cause())
	}
}
