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

// stream runs work in order.
//
// A stream is idle (nothing queued, no worker) or busy (a worker goroutine runs the queue). An idle
// stream runs work on the caller's thread, which avoids a goroutine switch for small messages. Work
// that would wait longer for peers is queued instead. The worker ends when the queue is empty. In
// both states the stream may be capturing: it records new work while the queue continues.
//
// A busy stream without a worker is deferred: the goroutine that has queued the work is about to
// call Synchronize, which runs the work.
//
// In each of these states the stream may have failed: the first work that fails sets err, and
// Synchronize clears it. Until then, the stream skips work.
type stream struct {
	device *Device

	mu       ranked.Spin[streamMu]
	queue    []work      // guarded by mu
	idle     *busyPeriod // nil while idle; guarded by mu
	deferred bool        // no worker runs the queue yet; guarded by mu
	err      error       // the failure, until Synchronize returns it; guarded by mu
	reported bool        // a call has already returned err; guarded by mu
	capture  *graph      // guarded by mu
	closed   bool        // guarded by mu
}

// busyPeriod is a time in which a stream is busy.
type busyPeriod struct {
	over chan struct{} // closed at the end of the period
	err  error         // the stream's failure at the end; set before over is closed
}

// Captured reports whether the stream is being captured.
func (s *stream) Captured() (bool, error) { return s.Capturing(), nil }

// Drop closes the stream, which has no other owner.
func (s *stream) Drop() error { return s.Close() }

// submit queues work, or records it during a capture. If the stream is idle and quick reports that
// the work does not wait, submit runs the work at once.
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
	s.enqueue(w, false)
	return nil
}

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

// enqueue queues work. On an idle stream it also starts the worker or, if inline is set, leaves the
// work to the next Synchronize. The caller holds s.mu.
func (s *stream) enqueue(w work, inline bool) {
	s.queue = append(s.queue, w)
	if s.idle != nil {
		return
	}
	s.idle = &busyPeriod{over: make(chan struct{})}
	if s.deferred = inline; !inline {
		go s.drain()
	}
}

// runDeferred runs a deferred stream's first work on the caller's goroutine. A worker then runs
// work that other goroutines have queued meanwhile. The caller holds s.mu, which runDeferred
// releases during the work.
func (s *stream) runDeferred() {
	s.deferred = false
	s.runFirst()
	if s.idle != nil {
		go s.drain()
	}
}

func (s *stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.idle != nil {
		s.runFirst()
	}
}

// runFirst removes the first work from the queue and runs it, or skips it if the stream has failed.
// After the last work it makes the stream idle. The caller holds s.mu, which runFirst releases
// during the work.
func (s *stream) runFirst() {
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
	if len(s.queue) == 0 {
		s.queue = nil
		s.idle.err = s.err
		close(s.idle.over)
		s.idle = nil
	}
}

// launch runs or queues a collective. This is the hot path: if the stream and the communicator are
// idle, it acquires two uncontended locks. inline is set if the caller calls Synchronize next.
func (s *stream) launch(p *plan, inline bool) error {
	s.mu.Lock()
	if s.idle != nil && s.capture == nil {
		s.awaitIdleBriefly()
	}
	if s.idle != nil || s.capture != nil || s.closed || s.err != nil || p.pair {
		s.mu.Unlock()
		return s.launchLater(p, inline)
	}
	queued, err := p.c.attempt(p)
	if queued != nil {
		s.enqueue(queued, inline)
	}
	if err != nil && !errors.Is(err, driver.ErrClosed) {
		s.err, s.reported = err, true
	}
	s.mu.Unlock()
	return err
}

// patience limits how long a launch waits for a busy stream before it is queued.
const patience = time.Millisecond

// awaitIdleBriefly waits a short time for the worker to finish. Callers launch work faster than a
// worker completes it, so without the wait, a stream that was late once would keep its worker and a
// growing queue. The caller holds s.mu, which is released during the wait.
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

// launchLater records or queues a collective, or starts a message.
func (s *stream) launchLater(p *plan, inline bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return s.usable()
	case s.capture != nil:
		s.capture.record(p)
	case p.Operation.PointToPoint():
		return s.message(p, inline)
	default:
		w, err := p.c.issueQueued(p)
		if err != nil {
			return s.refuse(err)
		}
		s.enqueue(w, inline)
	}
	return nil
}

// message transfers as much of a Send or Recv as possible without waiting, and queues the rest. The
// caller holds s.mu.
func (s *stream) message(p *plan, inline bool) error {
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
	s.enqueue(t, inline)
	return nil
}

// refuse fails the stream with a group's fault and returns the fault. If this rank has closed the
// group, the call is a mistake of the caller, and the stream stays usable. The caller holds s.mu.
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

// fail makes the stream fail at this point of its work or, in a capture, makes each launch of the
// graph fail its stream. The caller holds s.mu.
func (s *stream) fail(cause error) {
	switch {
	case s.capture != nil:
		s.capture.add(func(on *stream) error { return on.submit(failure{cause}, never) })
	case s.idle != nil:
		s.enqueue(failure{cause}, false)
	case s.err == nil:
		s.err, s.reported = cause, true
	}
}

// Copy copies bytes between device addresses.
func (s *stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	to, from := pointer(dst), pointer(src) // pointers keep Go memory reachable for the queued work
	return s.submit(memoryWork(func() {
		reduce.Copy(to, from, int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}), always)
}

// Fill sets bytes to a value.
func (s *stream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	to := pointer(dst) // as in Copy
	return s.submit(memoryWork(func() { reduce.Fill(to, value, int(bytes)) }), always)
}

// Host runs a function in stream order.
func (s *stream) Host(f func()) error { return s.submit(hostWork(f), never) }

// Synchronize waits until the stream is idle, and returns and clears its failure.
func (s *stream) Synchronize(ctx context.Context) error {
	if s.Capturing() {
		return fmt.Errorf("synchronizing a stream: %w", driver.ErrCapturing)
	}
	_, err := s.finish(ctx)
	return err
}

// finish waits until the stream is idle, clears its failure and returns it. It also reports whether
// an earlier call has already returned the failure. Concurrent callers all get the failure, because
// they wait for the same work. A closed stream keeps its failure.
func (s *stream) finish(ctx context.Context) (reported bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen error
	for s.idle != nil {
		if s.deferred {
			s.runDeferred()
			continue
		}
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
	if s.closed && err != nil {
		s.reported, s.err = true, err // for callers that synchronize during or after Close
	}
	if err == nil && seen != nil {
		return true, seen
	}
	return reported, err
}

// Close waits for the work and returns its first error, unless an earlier call has returned that
// error. After twice the longest timeout of the device and its groups, Close abandons the work,
// because a function of the program may never return. The device's memory then stays mapped.
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.device.longestTimeout())
	defer cancel()
	reported, err := s.finish(ctx)
	s.device.abandoned.keepFor(s)
	if reported {
		return nil
	}
	return err
}

func own(s driver.Stream) (*stream, error) {
	if h, ok := s.(*stream); ok && h != nil {
		return h, nil
	}
	return nil, errors.New("the stream belongs to another backend")
}
