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
// A busy stream has a worker goroutine that runs its queue. An idle stream uses the caller's thread
// for work that does not wait. A capturing stream records new work while queued work continues.
//
// A deferred stream is busy without a worker: the goroutine that queued the work is about to call
// Synchronize, which will run it.
//
// A lazy stream is busy without a worker, too. Its first work is a Recv that may run late without
// blocking the sender. The first caller that waits for the stream receives the message on its own
// thread, which saves two hand-overs between threads. If none waits, lateStarts starts a worker.
//
// The first work that fails sets err. The stream then skips all work until Synchronize clears err.
type stream struct {
	device *Device

	mu         ranked.Spin[streamMu] // guards the following fields
	queue      []work
	busyPeriod *busyPeriod // nil while idle
	deferred   bool
	lazy       *lazyRecv // nil unless the stream is lazy
	err        error
	reported   bool // a call has already returned err
	capture    *graph
	closed     bool
}

type busyPeriod struct {
	ended chan struct{} // closed when the stream becomes idle
	err   error         // the stream's error; set before ended is closed
}

func (s *stream) IsCapturing() (bool, error) { return s.Capturing(), nil }

func (s *stream) Drop() error { return s.Close() }

// submit queues or records work. An idle stream runs the work directly if needsNoWait returns true.
func (s *stream) submit(w work, needsNoWait func() bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkOpen(); err != nil {
		return err
	}

	if s.capture != nil {
		s.capture.addReplay(func(target *stream) error { return target.submit(w, needsNoWait) })
		return nil
	}

	if s.busyPeriod == nil && needsNoWait() {
		s.runOrSkip(w)
		return nil
	}

	s.enqueue(w, false)
	return nil
}

func (s *stream) runOrSkip(w work) {
	if s.err != nil {
		w.skip(s.err)
		return
	}

	s.err, s.reported = w.run(), false
}

func (s *stream) checkOpen() error {
	if s.closed {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}

	return nil
}

// enqueue adds work to the queue. On an idle stream, it also starts a worker, unless callerWaits is
// set, which leaves the work to the next Synchronize. The caller must hold s.mu.
func (s *stream) enqueue(w work, callerWaits bool) {
	s.queue = append(s.queue, w)
	if s.busyPeriod != nil {
		s.lazy.startWorkerLocked()
		return
	}

	s.busyPeriod = &busyPeriod{ended: make(chan struct{})}
	if s.deferred = callerWaits; !callerWaits {
		go s.drain()
	}
}

// runDeferred runs the first work of a deferred stream, and starts a worker for the rest. The
// caller must hold s.mu, which runDeferred releases during the work.
func (s *stream) runDeferred() {
	s.deferred = false
	s.runFirst()
	if s.busyPeriod != nil {
		go s.drain()
	}
}

func (s *stream) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.busyPeriod != nil {
		s.runFirst()
	}
}

// runFirst runs or skips the first work. The caller must hold s.mu, which runFirst releases during
// the work.
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
		s.busyPeriod.err = s.err
		close(s.busyPeriod.ended)
		s.busyPeriod = nil
	}
}

// lazyRecv is the first work of a lazy stream.
type lazyRecv struct {
	stream *stream
	recv   *recvCall
}

// receive runs the Recv on the thread of a caller that waits for it, unless it is already running.
func (l *lazyRecv) receive(ctx context.Context) {
	l.stream.mu.Lock()
	defer l.stream.mu.Unlock()
	if l.stream.lazy == l {
		l.receiveLocked(ctx)
	}
}

// receiveLocked runs the Recv and the events after it. If the message does not arrive soon or ctx
// ends, it starts a worker. The caller must hold stream.mu, which is released during the work.
func (l *lazyRecv) receiveLocked(ctx context.Context) {
	s := l.stream
	s.lazy = nil
	s.mu.Unlock()
	done, err := l.recv.receiveForWaiter(ctx)
	s.mu.Lock()
	if done || err != nil {
		s.queue[0] = received{err}
		s.runFirst()
	}

	for s.busyPeriod != nil {
		if _, isPoint := s.queue[0].(*point); !isPoint {
			go s.drain()
			return
		}

		s.runFirst()
	}
}

// startWorker starts a worker for the Recv, unless it is already running.
func (l *lazyRecv) startWorker() {
	l.stream.mu.Lock()
	defer l.stream.mu.Unlock()
	l.startWorkerLocked()
}

// startWorkerLocked does nothing if l is nil or the Recv is already running. The caller must hold
// stream.mu.
func (l *lazyRecv) startWorkerLocked() {
	if l != nil && l.stream.lazy == l {
		l.stream.lazy = nil
		go l.stream.drain()
	}
}

// received is a Recv that has ended.
type received struct{ err error }

func (r received) run() error { return r.err }

func (r received) skip(error) {}

// launch runs or queues a collective. On an idle stream, it usually acquires only two uncontended
// locks. callerWaits is set if the caller is about to call Synchronize.
func (s *stream) launch(p *plan, callerWaits bool) error {
	s.mu.Lock()
	if s.busyPeriod != nil && s.capture == nil {
		s.lazy.startWorkerLocked()
		s.waitBrieflyForIdle()
	}

	if s.busyPeriod != nil || s.capture != nil || s.closed || s.err != nil || p.isMessage {
		s.mu.Unlock()
		return s.launchLater(p, callerWaits)
	}

	queued, err := p.comm.runOrDefer(p)
	if queued != nil {
		s.enqueue(queued, callerWaits)
	}

	if err != nil && !errors.Is(err, driver.ErrClosed) {
		s.err, s.reported = err, true
	}

	s.mu.Unlock()
	return err
}

const launchWait = time.Millisecond

// waitBrieflyForIdle waits up to launchWait for the worker. Otherwise the queue would keep growing
// if the caller launches faster than the worker runs. The caller must hold s.mu, which is released
// during the wait.
func (s *stream) waitBrieflyForIdle() {
	idle := s.busyPeriod.ended
	s.mu.Unlock()
	defer s.mu.Lock()
	timer := time.NewTimer(launchWait)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}

func (s *stream) launchLater(p *plan, callerWaits bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return s.checkOpen()
	case s.capture != nil:
		s.capture.recordCall(p)
	case p.Operation.PointToPoint():
		return s.startMessage(p, callerWaits)
	default:
		w, err := p.comm.newDeferredCall(p)
		if err != nil {
			return s.refuse(err)
		}

		s.enqueue(w, callerWaits)
	}

	return nil
}

// startMessage transfers as much as possible of a message without waiting, and queues the rest. The
// caller must hold s.mu.
func (s *stream) startMessage(p *plan, callerWaits bool) error {
	t, err := p.newMessageWork()
	if err != nil {
		return s.refuse(err)
	}

	if s.busyPeriod == nil && s.err == nil {
		if done, err := t.transferNow(callerWaits); done || err != nil {
			s.err, s.reported = err, true
			return err
		}

		if r, ok := t.(*recvCall); ok && !callerWaits && r.canBeLate() {
			s.enqueue(r, true)
			s.deferred, s.lazy = false, &lazyRecv{s, r}
			s.device.lateStarts.add(s.lazy.startWorker)
			return nil
		}
	}

	s.enqueue(t, callerWaits)
	return nil
}

// refuse makes the stream fail, unless this rank has closed the group, which is the caller's
// mistake. The caller must hold s.mu.
func (s *stream) refuse(err error) error {
	if !errors.Is(err, driver.ErrClosed) {
		s.fail(err)
	}

	return err
}

func (s *stream) Fail(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(cause)
}

// fail makes the stream fail once the queued work is done. The caller must hold s.mu.
func (s *stream) fail(cause error) {
	switch {
	case s.capture != nil:
		s.capture.addReplay(func(target *stream) error {
			return target.submit(failure{cause}, neverReady)
		})
	case s.busyPeriod != nil:
		s.enqueue(failure{cause}, false)
	case s.err == nil:
		s.err, s.reported = cause, true
	}
}

func (s *stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}

	// Pointers keep Go memory reachable.
	dstMemory, srcMemory := pointer(dst), pointer(src)
	return s.submit(memoryWork(func() {
		reduce.Copy(dstMemory, srcMemory, int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}), alwaysReady)
}

func (s *stream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes: %w", bytes, driver.ErrOutOfRange)
	}

	memory := pointer(dst) // keeps Go memory reachable
	return s.submit(memoryWork(func() { reduce.Fill(memory, value, int(bytes)) }), alwaysReady)
}

func (s *stream) Host(f func()) error { return s.submit(hostWork(f), neverReady) }

func (s *stream) Synchronize(ctx context.Context) error {
	if s.Capturing() {
		return fmt.Errorf("synchronizing a stream: %w", driver.ErrCapturing)
	}

	_, err := s.finish(ctx)
	return err
}

// finish waits until the stream is idle, and returns and clears its error, which all concurrent
// callers get. reported is set if an earlier call has returned the error.
func (s *stream) finish(ctx context.Context) (reported bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen error
	for s.busyPeriod != nil {
		if s.deferred {
			s.runDeferred()
			continue
		}

		if s.lazy != nil {
			s.lazy.receiveLocked(ctx)
			continue
		}

		busy := s.busyPeriod
		s.mu.Unlock()
		select {
		case <-busy.ended:
			s.mu.Lock()
			if seen == nil {
				seen = busy.err
			}
		case <-ctx.Done():
			s.mu.Lock()
			return false, fmt.Errorf("synchronizing a stream: %w", context.Cause(ctx))
		}
	}

	reported, err = s.reported, s.err
	s.reported, s.err = false, nil
	if s.closed && err != nil {
		s.reported, s.err = true, err // for calls to Synchronize during or after Close
	}

	if err == nil && seen != nil {
		return true, seen
	}

	return reported, err
}

// Close returns the first error of the work, unless an earlier call has returned it. After twice
// the longest timeout of the device and its groups, it abandons the work, and the device's memory
// stays mapped.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}

	s.closed = true
	if s.capture != nil {
		s.device.capturingCount.Add(-1)
		s.capture = nil
	}

	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*s.device.longestTimeout())
	defer cancel()
	reported, err := s.finish(ctx)
	s.mu.Lock()
	period := s.busyPeriod
	s.mu.Unlock()
	if period != nil {
		s.device.abandonedWork.add(period.ended)
	}

	if reported {
		return nil
	}

	return err
}

func hostStream(s driver.Stream) (*stream, error) {
	if h, ok := s.(*stream); ok && h != nil {
		return h, nil
	}

	return nil, errors.New("the stream belongs to another backend")
}
