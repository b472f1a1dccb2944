package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/ranked"
	"symmem/internal/reduce"
)

// stream is an ordered queue of work.
//
// States: idle (nothing queued, no worker), busy (a worker goroutine runs the queue), capturing
// (work is recorded; a busy stream may capture, and its queue continues). An idle stream does its
// work on the caller's thread, so that small messages cost no hand-over; work that would have to
// wait for peers for long is queued instead. The worker ends when the queue is empty.
//
// In each of these states the stream may have failed: err is set by the first work that fails and
// taken by Synchronize. Until then work is skipped.
type stream struct {
	device *Device

	mu       ranked.Spin[streamMu]
	queue    []work      // guarded by mu
	idle     *busyPeriod // until the queue runs empty; nil while idle; guarded by mu
	err      error       // why work is skipped, until Synchronize returns it; guarded by mu
	reported bool        // the call that failed has returned err; guarded by mu
	capture  *graph      // guarded by mu
	closed   bool        // guarded by mu
}

// busyPeriod is a time for which a stream is busy.
type busyPeriod struct {
	over chan struct{} // closed at its end
	err  error         // why the stream had failed then; written before over is closed
}

// NewStream makes a stream.
func (d *Device) NewStream() (driver.Stream, error) { return &stream{device: d}, nil }

// AdoptStream makes a new stream: there are no others on the host, so the handle is only a name.
func (d *Device) AdoptStream(uintptr) (driver.AdoptedStream, error) {
	return &stream{device: d}, nil
}

// Captured reports whether the stream is being captured.
func (s *stream) Captured() (bool, error) { return s.Capturing(), nil }

// Drop is Close: the stream has no other owner.
func (s *stream) Drop() error { return s.Close() }

// submit queues work, records it, or, on an idle stream, does it at once if it is quick: what may
// take long is not run on the caller's thread.
func (s *stream) submit(w work, quick func() bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if s.capture != nil {
		s.capture.add(func(on *stream) error { return on.submit(w, quick) })
		return nil
	}
	if s.idle == nil && quick() {
		s.do(w)
		return nil
	}
	s.enqueue(w)
	return nil
}

// do runs work, or skips it if the stream has failed. s.mu is held.
func (s *stream) do(w work) {
	if s.err != nil {
		w.skip(s.err)
		return
	}
	s.err, s.reported = w.run(), false
}

func (s *stream) usable() error {
	if s.closed {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}
	return nil
}

// enqueue appends work and starts the worker. s.mu is held.
func (s *stream) enqueue(w work) {
	s.queue = append(s.queue, w)
	if s.idle == nil {
		s.idle = &busyPeriod{over: make(chan struct{})}
		go s.drain()
	}
}

// drain is the worker.
func (s *stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) > 0 {
		w := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		failed := s.err
		s.mu.Unlock()
		var err error
		if failed != nil {
			w.skip(failed)
		} else {
			err = w.run()
		}
		s.mu.Lock()
		if s.err == nil {
			_, reported := w.(failure)
			s.err, s.reported = err, reported
		}
	}
	s.queue = nil
	s.idle.err = s.err
	close(s.idle.over)
	s.idle = nil
}

// launch runs or queues a collective. It is the hot path: an idle stream and an idle communicator
// cost two uncontended locks.
func (s *stream) launch(p *plan) error {
	s.mu.Lock()
	if s.idle != nil && s.capture == nil {
		s.awaitIdleBriefly()
	}
	if s.idle != nil || s.capture != nil || s.closed || s.err != nil || p.pair {
		s.mu.Unlock()
		return s.launchLater(p)
	}
	queued, err := p.c.attempt(p)
	if queued != nil {
		s.enqueue(queued)
	}
	if err != nil && !errors.Is(err, driver.ErrClosed) {
		s.err, s.reported = err, true
	}
	s.mu.Unlock()
	return err
}

// patience is how long a launch waits for a busy stream before it queues behind it.
const patience = time.Millisecond

// awaitIdleBriefly gives the worker a moment to finish. A caller launches faster than a worker
// completes, so without it a stream that was late once would keep its worker, and its growing
// queue, as long as the caller keeps launching. s.mu is held, but not during the wait.
func (s *stream) awaitIdleBriefly() {
	idle := s.idle.over
	s.mu.Unlock()
	defer s.mu.Lock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}

func (s *stream) launchLater(p *plan) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return s.usable()
	case s.capture != nil:
		s.capture.record(p)
	case p.Operation.PointToPoint():
		return s.message(p)
	default:
		w, err := p.c.issueQueued(p)
		if err != nil {
			return s.refuse(err)
		}
		s.enqueue(w)
	}
	return nil
}

// message runs a Send or Recv, or as much of it as can be done without a wait, or queues it. s.mu
// is held.
func (s *stream) message(p *plan) error {
	t, err := p.transfer()
	if err != nil {
		return s.refuse(err)
	}
	if s.idle == nil && s.err == nil {
		if done, err := t.tryNow(); done || err != nil {
			s.err, s.reported = err, true
			return err
		}
	}
	s.enqueue(t)
	return nil
}

// refuse fails the stream by the fault of a group, for which a call on it is refused. If this rank
// has closed the group, the call is a mistake of the caller, and the stream stays usable. s.mu is
// held.
func (s *stream) refuse(err error) error {
	if !errors.Is(err, driver.ErrClosed) {
		s.fail(err)
	}
	return err
}

// Fail makes the stream fail at this point of its work.
func (s *stream) Fail(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(cause)
}

// fail is Fail with s.mu held. In a capture each launch of the graph fails.
func (s *stream) fail(cause error) {
	switch {
	case s.capture != nil:
		s.capture.add(func(on *stream) error { return on.submit(failure{cause}, never) })
	case s.idle != nil:
		s.enqueue(failure{cause})
	case s.err == nil:
		s.err, s.reported = cause, true
	}
}

// Copy copies bytes between device addresses.
func (s *stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	to, from := pointer(dst), pointer(src) // which the work keeps reachable, if they are of the heap
	return s.submit(memoryWork(func() {
		reduce.Copy(to, from, int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}), always)
}

// Fill sets bytes.
func (s *stream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	to := pointer(dst) // as in Copy
	return s.submit(memoryWork(func() { reduce.Fill(to, value, int(bytes)) }), always)
}

// Host runs a function in stream order.
func (s *stream) Host(f func()) error { return s.submit(hostWork(f), never) }

// Synchronize waits until the stream is idle, and ends its failure.
func (s *stream) Synchronize(ctx context.Context) error {
	if s.Capturing() {
		return fmt.Errorf("synchronizing a stream: %w", driver.ErrCapturing)
	}
	_, err := s.finish(ctx)
	return err
}

// finish is Synchronize, which also says whether a call has returned the error before. Of several
// that wait one takes the failure, and the others get it, too: the same work was theirs.
func (s *stream) finish(ctx context.Context) (reported bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen error
	for s.idle != nil {
		idle := s.idle
		s.mu.Unlock()
		select {
		case <-idle.over:
			s.mu.Lock()
			if seen == nil {
				seen = idle.err
			}
		case <-ctx.Done():
			s.mu.Lock()
			return false, fmt.Errorf("synchronizing a stream: %w", context.Cause(ctx))
		}
	}
	reported, err = s.reported, s.err
	s.reported, s.err = false, nil
	if err == nil && seen != nil {
		return true, seen
	}
	return reported, err
}

// Close waits for the work, and returns its first error if no call has. Work that has not ended
// after twice the timeout, such as a function of the user's, is left to itself, with all memory.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.capture != nil {
		s.device.capturing.Add(-1)
		s.capture = nil
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.device.cfg.Timeout)
	defer cancel()
	reported, err := s.finish(ctx)
	s.device.left.keepFor(s)
	if reported {
		return nil
	}
	return err
}

// own returns the stream behind the interface.
func own(s driver.Stream) (*stream, error) {
	if h, ok := s.(*stream); ok && h != nil {
		return h, nil
	}
	return nil, errors.New("the stream is of another backend")
}
