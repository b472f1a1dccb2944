package stream

import (
	"errors"

	"symmem/internal/cuda"
)

// Captured reports whether CUDA captures the stream. CUDA does not say it of its default stream
// while another one is captured: then nothing may be asked of that stream either. A stream that is
// closed may have been destroyed by its owner.
func (s *Stream) Captured() (bool, error) {
	s.questions.RLock()
	defer s.questions.RUnlock()
	if s.closed.Load() {
		return false, nil
	}
	var status cuda.CaptureStatus
	err := s.gpu.Do(func() (err error) {
		status, err = s.gpu.CUDA.CaptureStatus(s.CUDA)
		return err
	})
	if errors.Is(err, cuda.ErrCaptureImplicit) {
		return true, nil
	}
	return status != cuda.CaptureNone, err
}

// KeepUp puts the event of an adopted stream behind what has just been queued there, and not put
// into a capture. s.Mu is held. It is called on a thread of the context.
func (s *Stream) KeepUp() error {
	if !s.adopted || s.Recording || s.Capture != nil {
		return nil
	}
	return s.behind.Record(s)
}

// catchUp puts the event of an adopted stream behind all that is queued there, also by its owner,
// and reports whether that cannot be, since the stream is captured.
func (s *Stream) catchUp() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || !s.adopted || s.closed.Load() {
		return s.Capture != nil, nil
	}
	return s.overtake()
}

// overtake is catchUp of an adopted stream that is open. s.Mu is held. Its owner may begin a
// capture after the first look, with the point in it, which is asked about only when that capture
// must have ended. The first look is for the default stream, where nothing may be recorded during a
// capture.
func (s *Stream) overtake() (capturing bool, err error) {
	for {
		if capturing, err = s.Captured(); capturing || err != nil {
			return capturing, err
		}
		at, err := s.streams.NewPoint()
		if err == nil {
			err = s.gpu.Do(func() error { return s.gpu.CUDA.EventRecord(at.Handle, s.CUDA) })
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

// Mark puts an event behind what the stream has to do, and returns it: own, or that of an adopted
// stream, which is there. It is for groups that the stream carries, which hold a lock of theirs
// that Leave takes, too: so the stream does not capture or end meanwhile. It is called on a thread
// of the context.
func (s *Stream) Mark(own *Event) (*Event, error) {
	if s.adopted {
		return &s.behind, nil
	}
	own.streams = s.streams
	return own, own.Record(s)
}
