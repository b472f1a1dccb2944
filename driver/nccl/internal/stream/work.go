package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Copy copies bytes between addresses of the device or the host.
func (s *Stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	if s.pageable(dst, src, bytes) {
		s.expire()
	}
	return s.submitWork(func() error {
		if bytes == 0 {
			return nil
		}
		return s.gpu.CUDA.MemcpyAsync(dst, src, bytes, s.CUDA)
	})
}

// staged is the largest copy from pageable host memory for which CUDA does not wait for the stream.
const staged = 64 << 10

// pageable reports whether CUDA would keep a copy waiting for the stream.
func (s *Stream) pageable(dst, src uintptr, bytes int64) bool {
	return bytes > 0 && (!s.gpu.Knows(dst) || bytes > staged && !s.gpu.Knows(src))
}

// expire waits for the stream as CUDA would in a copy to pageable memory, but where the fault
// of a group can end the wait: in the call, with the stream locked, it would hold up
// everything.
func (s *Stream) expire() {
	if capturing, err := s.recordOwners(); capturing || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*s.gpu.Timeout)
	defer cancel()
	_ = gpu.Poll(ctx, s.Idle) // after which CUDA waits itself
}

// Fill sets bytes.
func (s *Stream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	return s.submitWork(func() error {
		if bytes == 0 {
			return nil
		}
		return s.gpu.CUDA.MemsetD8Async(dst, value, bytes, s.CUDA)
	})
}

// Host runs a function in stream order. A panic in it becomes the stream's error. A capture of the
// owner cannot have one: its graph may be launched several times at once, which is not seen here.
func (s *Stream) Host(work func()) error {
	return s.submitWork(func() error {
		if s.Recording {
			return fmt.Errorf("work of the host in a capture of another library: %w", driver.ErrUnsupported)
		}
		if s.Capture != nil {
			return s.captureHost(work)
		}
		if s.word == nil {
			var err error
			if s.word, err = s.gpu.Words.Take(s.gpu.CUDA); err != nil {
				return err
			}
		}
		if err := s.RecordGroups(nil); err != nil {
			return err
		}
		s.functions++
		// The word is this stream's of now: one that was given up has another one later.
		word, turn := s.word, s.functions
		f := cuda.NewHostFuncOnce(func() { go s.run(work, word, turn) })
		if err := s.gpu.CUDA.LaunchHostFunc(s.CUDA, f); err != nil {
			f.Release()
			return err
		}
		return s.gpu.CUDA.StreamWaitValue(s.CUDA, word.Address(), turn,
			cuda.WaitGreaterOrEqual)
	})
}

// captureHost records a function, which the graph keeps. Launches of one graph come one after the
// other, so the word can be taken back at the beginning of each. s.Mu is held.
func (s *Stream) captureHost(work func()) error {
	word, err := s.gpu.Words.Take(s.gpu.CUDA)
	if err != nil {
		return err
	}
	s.Capture.words, s.Capture.Waits = append(s.Capture.words, word), true
	f := cuda.NewHostFunc(func() {
		word.Set(0)
		go s.run(work, word, 1)
	})
	s.Capture.functions = append(s.Capture.functions, f)
	if err := s.gpu.CUDA.LaunchHostFunc(s.CUDA, f); err != nil {
		return err
	}
	return s.gpu.CUDA.StreamWaitValue(s.CUDA, word.Address(), 1, cuda.WaitEqual)
}

// run does the work of a host function, on a goroutine that was started for it, and then lets the
// stream continue.
func (s *Stream) run(work func(), done *gpu.Word, value uint32) {
	s.streams.Order.Load()
	driver.GuardHere("work on a stream", work, func(err error) {
		if err != nil {
			s.faults.add(err)
		}
		s.streams.Order.Add(1)
		done.Set(value)
	})
}

// Record records the event. In a capture it does so for each launch of the graph, after all
// of the graph's work: so the graph has no node for it.
// On a stream that its owner captures the point is behind what the stream was given here before; so
// it is on one that was closed before that had ended.
func (s *Stream) Record(e driver.Event) error {
	ev, ok := e.(*Event)
	if !ok || ev.streams != s.streams {
		return errors.New("recording an event: it is of another device")
	}
	if s.adopted && s.left.Load() && !s.queued.Done() {
		ev.share(&s.queued)
		return nil
	}
	return s.submit(func() error {
		switch {
		case s.Capture != nil:
			s.Capture.events = append(s.Capture.events, ev)
			return nil
		case s.adopted:
			_, err := s.recordUncaptured()
			ev.share(&s.queued)
			return err
		default:
			return ev.Record(s.CUDA)
		}
	})
}

// WaitOnly is Wait: CUDA's events carry no failure.
func (s *Stream) WaitOnly(e driver.Event) error { return s.Wait(e) }

// Wait makes later work wait for the event's point.
func (s *Stream) Wait(e driver.Event) error {
	ev, ok := e.(*Event)
	if !ok || ev.streams != s.streams {
		return errors.New("waiting for an event: it is of another device")
	}
	return s.submitWork(func() error {
		if s.Capture != nil || s.Recording {
			return s.waitCaptured(ev)
		}
		return errors.Join(s.RecordGroups(nil), ev.StreamWait(s.CUDA, s.gpu.CUDA))
	})
}

// waitCaptured records a wait for the point that the event marks now. A graph would wait for the
// event's last point at each launch, so the wait is for a second event, recorded once, behind that
// point.
func (s *Stream) waitCaptured(ev *Event) error {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if ev.at == nil {
		return nil
	}
	point, err := s.streams.PointBehind(func(on cuda.Stream) error {
		return s.gpu.CUDA.StreamWaitEvent(on, ev.at.Handle)
	})
	if err != nil {
		return err
	}
	if s.Capture != nil {
		s.Capture.points, s.Capture.Waits = append(s.Capture.points, point), true
	} else if err := s.keepInCapture(point); err != nil {
		return err
	}
	return s.gpu.CUDA.StreamWaitEventExternal(s.CUDA, point.Handle)
}

// keepInCapture keeps a point as long as the graph of the owner's capture. s.Mu is held.
func (s *Stream) keepInCapture(p *Point) error {
	gpu := s.gpu.CUDA
	capture, err := gpu.CaptureInfo(s.CUDA)
	if err != nil || capture.Graph == 0 {
		return err
	}
	err = gpu.AtGraphEnd(capture.Graph, func() { runtime.KeepAlive(p) })
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		s.streams.keep(p)
		return nil
	}
	return err
}
