package stream

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

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

// maxBufferedCopy is the size in bytes of the largest copy from pageable memory that CUDA buffers.
// The calls of larger ones wait for the stream.
const maxBufferedCopy = 64 << 10

// doesCopyWait reports whether CUDA's copy call waits for the stream. It does so for copies to
// pageable memory (which CUDA has not mapped), and for large copies from it.
func doesCopyWait(g *gpu.GPU, dst, src uintptr, bytes int64) bool {
	if bytes == 0 {
		return false
	}

	isBuffered := bytes <= maxBufferedCopy
	return !g.IsMapped(dst) || (!isBuffered && !g.IsMapped(src))
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
// stream's error. While another library is capturing the stream, Host returns ErrUnsupported,
// because launches of that library's graph may overlap.
func (s *Stream) Host(work func()) error {
	return s.submitWork(func() error {
		if s.Recording {
			return fmt.Errorf("queueing a host function while another library is capturing the "+
				"stream: %w", driver.ErrUnsupported)
		}

		// run calls work and then sets done to a value.
		run := func(done *gpu.Word, value uint32) {
			s.streams.runHostFunc(work, s.addFault, done, value)
		}
		if s.Capture != nil {
			return s.Capture.addHostFunc(s.CUDA, run)
		}

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
		// Copy both fields, because Abandon replaces them. CUDA's thread only starts a goroutine.
		// Later work of the stream waits until run has written number to word.
		word, number := s.hostFuncWord, s.hostFuncCount
		f := cuda.NewHostFuncOnce(func() { go run(word, number) })
		if err := s.gpu.CUDA.LaunchHostFunc(s.CUDA, f); err != nil {
			f.Release()
			return err
		}

		return s.gpu.CUDA.StreamWaitValue(s.CUDA, word.Address(), number,
			cuda.WaitGreaterOrEqual)
	})
}

// Record records an event after the work queued on the stream. During a capture, it makes each
// launch of the graph record the event at its end.
//
// On an adopted stream (of another library), the event follows the owner's work, too, with two
// exceptions: while the owner is capturing the stream, and after the stream was closed with
// unfinished work. In these cases, it follows only the work that symmem has queued.
func (s *Stream) Record(e driver.Event) error {
	event, ok := e.(*Event)
	if !ok || event.streams != s.streams {
		return errors.New("recording an event: the event belongs to another device")
	}

	if s.isAdopted && s.closedWhileBusy.Load() && !s.queuedEnd.Done() {
		event.sharePoint(&s.queuedEnd)
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

		_, err := s.recordEndEvent(func() error { return recordAllGroups(s) })
		event.sharePoint(&s.queuedEnd) // unchanged if the owner is capturing the stream
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
		if !isCapturing {
			recordErr := recordAllGroups(s)
			waitErr := event.StreamWait(s.CUDA, s.gpu.CUDA)
			return errors.Join(recordErr, waitErr)
		}

		point, err := event.newFixedPoint()
		if err != nil {
			return err
		}

		if point == nil { // the event has never been recorded, and counts as done
			return nil
		}

		// The graph must keep the point reachable, because it uses its CUDA event.
		if s.Capture != nil {
			s.Capture.awaitedPoints = append(s.Capture.awaitedPoints, point)
			s.Capture.HasOtherWaits = true
		} else if err := s.streams.keepInCapture(s.CUDA, point); err != nil {
			return err
		}

		return s.gpu.CUDA.StreamWaitEventExternal(s.CUDA, point.Handle)
	})
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
