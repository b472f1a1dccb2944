package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"symmem/driver"
)

// closedChannel is the tail of a stream that has no work.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// smallWork is a piece of work on a stream. streamErr is the stream's error. If it is not nil, the
// work must be skipped. If smallWork returns an error, the stream fails.
type smallWork func(streamErr error) error

// smallStep creates the work of one call. It is called immediately or, if the call is captured, in
// each launch of the graph. The call or launch returns the error. If the work is nil, nothing is
// queued.
type smallStep func() (smallWork, error)

// smallStream runs each piece of work in a goroutine that waits for the previous one.
type smallStream struct {
	device *smallDevice

	mu       sync.Mutex
	tail     chan struct{} // closed when all work is done; guarded by mu
	err      error         // the failure, until Synchronize returns it; guarded by mu
	reported bool          // whether the caller already knows err; guarded by mu
	capture  *smallGraph   // graph being captured, or nil; guarded by mu
	closed   bool          // guarded by mu
}

// queue queues or records the work of a call.
func (s *smallStream) queue(step smallStep) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("queueing work: %w", driver.ErrClosed)
	case s.capture != nil:
		s.capture.steps = append(s.capture.steps, step)
		return nil
	}

	return s.enqueue(step)
}

// enqueue queues the work of a step. The caller must hold s.mu.
func (s *smallStream) enqueue(step smallStep) error {
	work, err := step()
	if work == nil {
		return err
	}

	before := s.tail
	done := make(chan struct{})
	s.tail = done
	go func() {
		defer close(done)
		<-before
		s.mu.Lock()
		streamErr := s.err
		s.mu.Unlock()
		if err := work(streamErr); err != nil && streamErr == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.err = err
		}
	}()
	return err
}

// queueWork queues work that a failed stream skips.
func (s *smallStream) queueWork(work func() error) error {
	return s.queue(func() (smallWork, error) {
		return func(streamErr error) error {
			if streamErr == nil {
				return work()
			}

			return nil
		}, nil
	})
}

func (s *smallStream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes", bytes)
	}

	return s.queueWork(func() error { copy(memoryAt(dst, bytes), memoryAt(src, bytes)); return nil })
}

func (s *smallStream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes", bytes)
	}

	return s.queueWork(func() error {
		for i, memory := 0, memoryAt(dst, bytes); i < len(memory); i++ {
			memory[i] = value
		}

		return nil
	})
}

func (s *smallStream) Host(work func()) error {
	return s.queueWork(func() error { work(); return nil })
}

func (s *smallStream) Fail(cause error) {
	// An error means that the stream is closed. Fail then has no effect.
	_ = s.queueWork(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reported = true
		return cause
	})
}

func (s *smallStream) Record(e driver.Event) error {
	return s.queue(func() (smallWork, error) {
		p := &smallPoint{done: make(chan struct{})}
		e.(*smallEvent).point.Store(p)
		return func(streamErr error) error {
			p.err = streamErr
			close(p.done)
			return nil
		}, nil
	})
}

func (s *smallStream) Wait(e driver.Event) error {
	p := e.(*smallEvent).point.Load()
	return s.queueWork(func() error { <-p.done; return p.err })
}

func (s *smallStream) WaitIgnoringErrors(e driver.Event) error {
	p := e.(*smallEvent).point.Load()
	return s.queueWork(func() error { <-p.done; return nil })
}

func (s *smallStream) Synchronize(ctx context.Context) error {
	s.mu.Lock()
	tail, capturing := s.tail, s.capture != nil
	s.mu.Unlock()
	if capturing {
		return driver.ErrCapturing
	}

	select {
	case <-tail:
	case <-ctx.Done():
		return ctx.Err()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.err
	s.err, s.reported = nil, false
	return err
}

func (s *smallStream) BeginCapture() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return driver.ErrClosed
	case s.capture != nil:
		return driver.ErrCapturing
	}

	s.capture = &smallGraph{}
	s.device.capturing.Add(1)
	return nil
}

func (s *smallStream) EndCapture() (driver.Graph, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.capture
	if g == nil {
		return nil, driver.ErrNotCapturing
	}

	s.capture = nil
	s.device.capturing.Add(-1)
	return g, nil
}

func (s *smallStream) Capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

func (s *smallStream) Close() error {
	_, _ = s.EndCapture() // fails if the stream is not capturing
	s.mu.Lock()
	s.closed = true
	reported := s.reported
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.device.cfg.Timeout)
	defer cancel()
	if err := s.Synchronize(ctx); !reported {
		return err
	}

	return nil
}

type smallGraph struct {
	steps  []smallStep
	closed atomic.Bool
}

func (g *smallGraph) Launch(target driver.Stream) error {
	s := target.(*smallStream)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || g.closed.Load():
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	case s.capture != nil:
		return driver.ErrCapturing
	}

	var errs []error
	for _, step := range g.steps {
		errs = append(errs, s.enqueue(step))
	}

	return errors.Join(errs...)
}

func (g *smallGraph) Close() error {
	g.closed.Store(true)
	return nil
}

// smallPoint marks a position in a stream's work. err is set before done is closed.
type smallPoint struct {
	done chan struct{}
	err  error
}

type smallEvent struct{ point atomic.Pointer[smallPoint] }

func (e *smallEvent) Done() bool {
	select {
	case <-e.point.Load().done:
		return true
	default:
		return false
	}
}

func (e *smallEvent) Synchronize(ctx context.Context) error {
	p := e.point.Load()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
