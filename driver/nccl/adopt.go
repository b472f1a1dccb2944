package nccl

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// AdoptStream makes a stream of one that another library has made.
func (d *Device) AdoptStream(handle uintptr) (driver.AdoptedStream, error) {
	s := &stream{device: d, handle: cuda.Stream(handle), adopted: true, behind: event{device: d}}
	d.guests.Store(true)
	if _, err := s.Captured(); err != nil {
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}
	return s, nil
}

// Captured reports whether CUDA captures the stream. CUDA does not say it of its default stream
// while another one is captured: then nothing may be asked of that stream either. A stream that is
// closed may have been destroyed by its owner.
func (s *stream) Captured() (bool, error) {
	s.questions.RLock()
	defer s.questions.RUnlock()
	if s.closed.Load() {
		return false, nil
	}
	var status cuda.CaptureStatus
	err := s.device.do(func() (err error) {
		status, err = s.device.cuda.CaptureStatus(s.handle)
		return err
	})
	if errors.Is(err, cuda.ErrCaptureImplicit) {
		return true, nil
	}
	return status != cuda.CaptureNone, err
}

// keepUp puts the event of an adopted stream behind what has just been queued there, and not put
// into a capture. s.mu is held. It is called on a thread of the device.
func (s *stream) keepUp() error {
	if !s.adopted || s.recording || s.capture != nil {
		return nil
	}
	return s.behind.record(s)
}

// catchUp puts the event of an adopted stream behind all that is queued there, also by its owner,
// and reports whether that cannot be, since the stream is captured.
func (s *stream) catchUp() (capturing bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture != nil || !s.adopted || s.closed.Load() {
		return s.capture != nil, nil
	}
	return s.overtake()
}

// overtake is catchUp of an adopted stream that is open. s.mu is held. Its owner may begin a
// capture after the first look, with the point in it, which is asked about only when that capture
// must have ended. The first look is for the default stream, where nothing may be recorded during a
// capture.
func (s *stream) overtake() (capturing bool, err error) {
	for {
		if capturing, err = s.Captured(); capturing || err != nil {
			return capturing, err
		}
		at, err := s.device.newPoint()
		if err == nil {
			err = s.device.do(func() error { return s.device.cuda.EventRecord(at.handle, s.handle) })
		}
		if err != nil {
			return false, err
		}
		if capturing, err = s.Captured(); capturing || err != nil {
			return capturing, err
		}
		if _, err := at.reached(); !errors.Is(err, cuda.ErrCapturedEvent) {
			s.behind.set(at)
			return false, nil
		}
	}
}

// noteReplays notes that another library captures calls of the group: from then on the watcher
// looks at what replays report. It also asks what they have reported so far. c.mu is held.
func (c *communicator) noteReplays() error {
	if !c.replayed.Swap(true) {
		c.busy.rouse()
	}
	return c.askKernels()
}

// compareRecorded compares a call that is put into a capture. No stream is noted as having work:
// nothing runs, and CUDA must not be asked about a stream that is captured. c.mu is held.
func (c *communicator) compareRecorded(p *plan) error {
	if !c.check.Load() || p.kernel != nil && c.direct.shown != nil {
		return nil
	}
	ticket := c.plane.Submit()
	c.history.reach(ticket)
	c.comparing.Store(&p.Call)
	defer c.comparing.Store(nil)
	return c.plane.Compare(ticket, &p.Call)
}

// unrecordable refuses a message.
func unrecordable(p *plan) error {
	return fmt.Errorf("recording %v in a capture of another library: %w", p.Operation,
		driver.ErrUnsupported)
}

// Ordinal is the number of the GPU among those that the process sees.
func (d *Device) Ordinal() int { return d.gpu.Ordinal() }
