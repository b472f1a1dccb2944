package stream

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// The methods of this file queue work on a stream. There are three cases:
//
//   - Normally, the stream runs the work.
//   - Between BeginCapture and EndCapture, the stream adds the work to the graph s.Capture, which
//     symmem launches later.
//   - Another library can own the stream, which is then called adopted. While the owner captures
//     the stream, CUDA adds the work to a graph of the owner, and s.Recording is set.

// Copy queues a copy of bytes between addresses of the device or the host.
func (s *Stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}

	if doesCopyWait(s.gpu, dst, src, bytes) {
		waitBeforeCopy(s)
	}

	return s.submitWork(func() error {
		if bytes == 0 {
			return nil
		}

		return s.gpu.CUDA.MemcpyAsync(dst, src, bytes, s.CUDA)
	})
}

// maxBufferedCopy is the size in bytes of the largest copy that CUDA buffers if the source is
// pageable memory: memory that CUDA has not mapped.
const maxBufferedCopy = 64 << 10

// doesCopyWait reports whether CUDA's copy call waits for the stream. It waits if it copies to
// pageable memory, or from it without buffering.
func doesCopyWait(g *gpu.GPU, dst, src uintptr, bytes int64) bool {
	if bytes == 0 {
		return false
	}

	isBuffered := bytes <= maxBufferedCopy
	return !g.IsMapped(dst) || (!isBuffered && !g.IsMapped(src))
}

// waitBeforeCopy waits for the stream, for a limited time. Otherwise, CUDA's copy call would wait,
// while Copy holds the stream's lock. The fault of a group could then not end the wait.
func waitBeforeCopy(s *Stream) {
	capturing, err := s.recordAllWork()
	if capturing || err != nil {
		return // a captured copy does not wait; after an error, let the copy call report it
	}

	ctx, cancel := context.WithTimeout(context.Background(), 4*s.gpu.Timeout)
	defer cancel()
	_ = gpu.Poll(ctx, s.Idle) // after a timeout, CUDA's copy call waits
}

// Fill queues an operation that sets bytes to a value.
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

// Queue calls queueWork, which queues work on the CUDA stream and must not wait.
func Queue(s *Stream, queueWork func(stream cuda.Stream) error) error {
	return s.submitWork(func() error { return queueWork(s.CUDA) })
}

// Host queues a function, which runs on the host. If the function panics, the panic becomes the
// stream's error. While the owner of an adopted stream is capturing it, Host returns
// ErrUnsupported, because launches of the owner's graph may overlap.
func (s *Stream) Host(work func()) error {
	return s.submitWork(func() error {
		if s.Recording {
			return fmt.Errorf("queueing a host function while another library is capturing the "+
				"stream: %w", driver.ErrUnsupported)
		}

		// run calls work, and then writes value to done, a word of host memory.
		run := func(done *gpu.Word, value uint32) {
			s.streams.runHostFunc(work, s.addFault, done, value)
		}
		if s.Capture != nil {
			return s.Capture.addHostFunc(s.CUDA, run)
		}

		return queueHostFunc(s, run)
	})
}

// queueHostFunc makes the stream call run on a new goroutine, and wait for it. The nth function
// writes n to s.hostFuncWord, and the stream waits until the word is at least n. The caller must
// hold s.Mu, and the CUDA context must be current.
func queueHostFunc(s *Stream, run func(done *gpu.Word, value uint32)) error {
	if s.hostFuncWord == nil {
		word, err := s.gpu.Words.Take(s.gpu.CUDA)
		if err != nil {
			return err
		}

		s.hostFuncWord = word
	}

	if err := recordAllGroups(s); err != nil {
		return err
	}

	s.hostFuncCount++
	word, number := s.hostFuncWord, s.hostFuncCount // copies, because Abandon replaces the fields
	// CUDA runs all host functions of a context on one thread, so this one only starts a goroutine.
	f := cuda.NewHostFuncOnce(func() { go run(word, number) })
	if err := s.gpu.CUDA.LaunchHostFunc(s.CUDA, f); err != nil {
		f.Release()
		return err
	}

	return s.gpu.CUDA.StreamWaitValue(s.CUDA, word.Address(), number, cuda.WaitGreaterOrEqual)
}

// Record records an event after the work queued on the stream. During a capture, it makes each
// launch of the graph record the event at its end.
//
// On an adopted stream, the event follows the owner's work, too, with two exceptions: while the
// owner is capturing the stream, and after the stream was closed with unfinished work. In these
// cases, it follows only the work that symmem has queued.
func (s *Stream) Record(e driver.Event) error {
	event, ok := e.(*Event)
	if !ok || event.streams != s.streams {
		return errors.New("recording an event: the event belongs to another device")
	}

	if s.isAdopted && s.closedWhileBusy.Load() && !s.queuedEnd.Done() {
		event.sharePoint(&s.queuedEnd) // the end of symmem's work
		return nil
	}

	return s.submit(func() error {
		if s.Capture != nil {
			s.Capture.endEvents = append(s.Capture.endEvents, event)
			return nil
		}

		if !s.isAdopted {
			return event.Record(s.CUDA)
		}

		_, err := recordAllWorkLocked(s)
		event.sharePoint(&s.queuedEnd)
		return err
	})
}

// WaitIgnoringErrors is the same as Wait, because CUDA events hold no errors.
func (s *Stream) WaitIgnoringErrors(e driver.Event) error { return s.Wait(e) }

// Wait makes later work wait for the event's last recorded point. During a capture, it makes each
// launch of the graph wait for this point, even if the event has been recorded again. The event may
// belong to another Device of this process that uses the same GPU.
func (s *Stream) Wait(e driver.Event) error {
	event, ok := e.(*Event)
	if !ok || !event.streams.GPU.SharesContext(s.gpu) {
		return errors.New("waiting for an event: the event belongs to another device")
	}

	return s.submitWork(func() error {
		isCapturing := s.Capture != nil || s.Recording
		if isCapturing {
			return captureWait(s, event)
		}

		recordErr := recordAllGroups(s)
		waitErr := event.StreamWait(s.CUDA, s.gpu.CUDA)
		return errors.Join(recordErr, waitErr)
	})
}

// captureWait adds a wait to the graph that is being captured. The graph waits for a point that
// does not move, and keeps this point reachable. The caller must hold s.Mu, and the CUDA context
// must be current.
func captureWait(s *Stream, event *Event) error {
	point, err := event.newFixedPoint()
	if err != nil {
		return err
	}

	if point == nil { // the event has never been recorded, and counts as done
		return nil
	}

	if s.Capture != nil {
		s.Capture.awaitedPoints = append(s.Capture.awaitedPoints, point)
		s.Capture.HasOtherWaits = true
	} else if err := s.streams.keepInCapture(s.CUDA, point); err != nil {
		return err
	}

	return s.gpu.CUDA.StreamWaitEventExternal(s.CUDA, point.Handle)
}

// BeginCapture makes the stream record work in a graph instead of running it.
func (s *Stream) BeginCapture() error {
	return s.submit(func() error {
		if s.Capture != nil {
			return fmt.Errorf("beginning a capture: %w", driver.ErrCapturing)
		}

		if err := recordAllGroups(s); err != nil {
			return err
		}

		var priorWork *Event // nil if the stream is idle
		if !s.IdleLocked() {
			priorWork = s.streams.NewEvent()
			if err := priorWork.Record(s.CUDA); err != nil {
				return err
			}
		}

		if err := s.gpu.CUDA.BeginCapture(s.CUDA, cuda.CaptureRelaxed); err != nil {
			return err
		}

		s.Capture = &Graph{streams: s.streams, priorWork: priorWork, Calls: s.streams.NewCalls()}
		s.streams.Capturing.Add(1)
		return nil
	})
}

// EndCapture ends the capture and returns its graph.
func (s *Stream) EndCapture() (driver.Graph, error) {
	var g *Graph
	err := s.submit(func() error {
		if s.Capture == nil {
			return fmt.Errorf("ending a capture: %w", driver.ErrNotCapturing)
		}

		g = s.Capture
		s.Capture = nil
		s.streams.Capturing.Add(-1)
		return g.endCapture(s)
	})
	if err == nil {
		return g, nil
	}

	if g == nil { // no capture has ended
		return nil, err
	}

	closeErr := g.Close()
	return nil, errors.Join(err, closeErr)
}

// Capturing reports whether the stream is between BeginCapture and EndCapture.
func (s *Stream) Capturing() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Capture != nil
}
