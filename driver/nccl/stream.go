package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// stream is a CUDA stream with what CUDA does not keep: whose collectives it has, and the first
// fault that one of them met.
//
// States: open; capturing (work is recorded into a graph); closed. Captures use CUDA's relaxed
// mode, since goroutines change threads.
type stream struct {
	device *Device
	handle cuda.Stream

	mu      ranked.Spin[streamMu]
	capture *graph      // guarded by mu
	closed  atomic.Bool // changes with mu and questions held
	// waited tells that all work was waited for and went well. Changes with mu held.
	waited atomic.Bool
	// last is the communicator that launched here most recently, ticket its collective.
	last      *communicator    // guarded by mu
	ticket    uint64           // guarded by mu
	operation driver.Operation // guarded by mu
	// functions counts the host functions; word is what the last one that has run wrote.
	functions uint32 // guarded by mu
	word      *word  // guarded by mu; made at the first use
	// carries are the groups whose kernels were launched here.
	carries []*communicator // guarded by mu
	// adopted tells that another library made the stream, and may capture or end it at any time.
	adopted bool
	// behind is behind what an adopted stream was given here. CUDA is asked about it instead of the
	// stream, which would lose a capture that the owner begins just then. Recorded with mu held.
	behind event
	// questions is held while CUDA is asked without mu whether the owner captures, so that Close
	// returns after that: the owner may destroy the stream then. It is taken after mu.
	questions ranked.RWMutex[streamQuestions]
	// recording tells that the call under way is put into a capture of the owner. Guarded by mu.
	recording bool

	faults ranked.Mutex[streamFaults]
	fault  error // first since the last Synchronize; guarded by faults
	// blamed are the communicators whose fault this stream has told of or will tell of; culprit is
	// that of fault.
	blamed  []*communicator // guarded by faults
	culprit *communicator   // guarded by faults
}

// NewStream makes a stream.
func (d *Device) NewStream() (driver.Stream, error) {
	s := &stream{device: d}
	err := d.do(func() (err error) {
		s.handle, err = d.cuda.StreamCreate(true)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making a stream: %w", err)
	}
	return s, nil
}

// submit makes CUDA calls on an open stream.
func (s *stream) submit(calls func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.device.do(calls)
}

// give is submit for calls that queue work.
func (s *stream) give(calls func() error) error {
	return s.submit(func() (err error) {
		if s.adopted && s.capture == nil {
			if s.recording, err = s.Captured(); err != nil {
				return err
			}
			defer func() { s.recording = false }()
		}
		return errors.Join(calls(), s.keepUp())
	})
}

// busyAgain notes that the stream gets work that nobody has waited for. s.mu is held. The load
// spares most launches a locked instruction.
func (s *stream) busyAgain() {
	if s.waited.Load() {
		s.waited.Store(false)
	}
}

// usable refuses a closed stream. s.mu is held.
func (s *stream) usable() error {
	if s.closed.Load() {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}
	return nil
}

// Fail does nothing: the caller knows the error, and what a GPU has been given runs on.
func (s *stream) Fail(error) {}

// fail keeps the first fault for the next Synchronize.
func (s *stream) fail(err error) {
	s.faults.Lock()
	defer s.faults.Unlock()
	if s.fault == nil {
		s.fault = err
	}
}

// blame is fail for the fault of a communicator, which is told once.
func (s *stream) blame(c *communicator, err error) {
	s.faults.Lock()
	defer s.faults.Unlock()
	if slices.Contains(s.blamed, c) {
		return
	}
	s.blamed = append(s.blamed, c)
	if s.fault == nil {
		s.fault, s.culprit = err, c
	}
}

// told notes that the caller knows of the fault of a communicator.
func (s *stream) told(c *communicator) {
	s.faults.Lock()
	defer s.faults.Unlock()
	if !slices.Contains(s.blamed, c) {
		s.blamed = append(s.blamed, c)
	}
	if s.culprit == c {
		s.fault, s.culprit = nil, nil
	}
}

// takeFault returns the fault that Synchronize reports, once.
func (s *stream) takeFault() error {
	s.faults.Lock()
	defer s.faults.Unlock()
	err := s.fault
	s.fault, s.culprit = nil, nil
	return err
}

// Copy copies bytes between addresses of the device or the host.
func (s *stream) Copy(dst, src uintptr, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("copying %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	if s.pageable(dst, src, bytes) {
		s.expire()
	}
	return s.give(func() error {
		if bytes == 0 {
			return nil
		}
		return s.device.cuda.MemcpyAsync(dst, src, bytes, s.handle)
	})
}

// staged is what CUDA copies from pageable memory of the host without a wait for the stream.
const staged = 64 << 10

// pageable reports whether CUDA would keep a copy waiting for the stream.
func (s *stream) pageable(dst, src uintptr, bytes int64) bool {
	return bytes > 0 && (!s.device.knows(dst) || bytes > staged && !s.device.knows(src))
}

// knows reports whether CUDA has mapped an address.
func (d *Device) knows(address uintptr) bool {
	return nil == d.do(func() error { return d.cuda.MemRange(address) })
}

// expire waits for the stream as CUDA would in a copy to pageable memory, but where the fault
// of a group can end the wait: in the call, with the stream locked, it would hold up
// everything.
func (s *stream) expire() {
	if capturing, err := s.catchUp(); capturing || err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*s.device.cfg.Timeout)
	defer cancel()
	_ = poll(ctx, s.idle) // after which CUDA waits itself
}

// Fill sets bytes.
func (s *stream) Fill(dst uintptr, value byte, bytes int64) error {
	if bytes < 0 {
		return fmt.Errorf("filling %d bytes: %w", bytes, driver.ErrOutOfRange)
	}
	return s.give(func() error {
		if bytes == 0 {
			return nil
		}
		return s.device.cuda.MemsetD8Async(dst, value, bytes, s.handle)
	})
}

// idle reports whether all work is done; of an adopted stream, what keepUp and catchUp have marked.
// It does not wait for a call that is queueing some: then the stream is not idle. Errors of the
// device count as done: nothing else will come.
func (s *stream) idle() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	return s.quiet()
}

// quiet is idle with s.mu held. CUDA must not be asked about a stream that captures, but may be
// about an event that was recorded there before.
func (s *stream) quiet() bool {
	switch {
	case s.closed.Load():
		return true
	case s.capture != nil:
		return s.capture.before == nil || s.capture.before.Done()
	}
	done, err := s.query()
	return done || err != nil
}

// query asks CUDA whether all work is done. s.mu is held.
func (s *stream) query() (done bool, err error) {
	if s.adopted {
		return s.behind.query()
	}
	err = s.device.with(func(gpu *cuda.Driver) error {
		done, err = gpu.StreamQuery(s.handle)
		return err
	})
	s.device.order.Load()
	return done, err
}

// Synchronize waits until the stream is idle; what an owner of it queues meanwhile is not waited
// for.
func (s *stream) Synchronize(ctx context.Context) error {
	capturing, err := s.catchUp()
	if capturing {
		err = driver.ErrCapturing
	}
	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}
	if err := s.finish(ctx); err != nil {
		return err
	}
	return s.replayFault()
}

// finish waits for the work and reports the first fault.
func (s *stream) finish(ctx context.Context) error {
	s.mu.Lock()
	c, ticket, operation := s.last, s.ticket, s.operation
	s.mu.Unlock()
	err := s.await(ctx, c, ticket, operation)
	s.failReported()
	if fault := s.takeFault(); fault != nil {
		return fault
	}
	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}
	if err := s.deviceError(); err != nil {
		return err
	}
	if c != nil && c.endedEarly(ticket) {
		s.blame(c, c.failEarly(ticket))
		if fault := s.takeFault(); fault != nil {
			return fault
		}
	}
	if s.mu.TryLock() {
		s.waited.Store(s.quiet())
		s.mu.Unlock()
	}
	return nil
}

// await waits for the stream's work. If a communicator has work here, the wait looks for trouble
// with its ranks; that of other communicators is seen by their watchers.
func (s *stream) await(
	ctx context.Context, c *communicator, ticket uint64, operation driver.Operation,
) error {
	if c == nil || s.idle() {
		return poll(ctx, s.idle)
	}
	if err := c.awaitOn(ctx, s, ticket, operation); err == nil || ctx.Err() != nil {
		return err
	}
	// The communicator has failed, and its kernels are being ended. A stream with one that does not
	// end is given up with all that is queued, so the caller, who will queue more, is told after
	// that. The fault is told even if the stream has other work that goes on.
	select {
	case <-c.quiet:
	case <-ctx.Done():
	case <-time.After(4 * endingTime):
	}
	ended, cancel := context.WithTimeout(ctx, endingTime)
	defer cancel()
	return poll(ended, s.idle)
}

// abandon goes on with another CUDA stream, if the present one has a kernel that does not end. What
// is queued there is given up, with the kernel; so are the events that were recorded behind it.
func (s *stream) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture != nil || s.quiet() {
		return
	}
	// Work of the owner's that takes longer than kernels get to end looks the same. Then memory
	// stays mapped and communicators stay until the process ends, which is better than a call that
	// hangs.
	stuck.Store(true)
	if s.adopted {
		return // what becomes of a stream of another library is not ours to say
	}
	err := s.device.do(func() error {
		handle, err := s.device.cuda.StreamCreate(true)
		if err == nil {
			s.detach()
			s.handle, s.word, s.functions = handle, nil, 0
		}
		return err
	})
	if err != nil {
		s.fail(fmt.Errorf("giving up a stream: %w", err))
	}
}

// deviceError reports what CUDA says of an idle stream.
func (s *stream) deviceError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() || s.capture != nil {
		return nil
	}
	_, err := s.query()
	return err
}

// Close waits for the work, as long as the device's timeout allows, and ends a capture. An adopted
// stream is left to its owner, and CUDA is not asked about it any more.
func (s *stream) Close() error { return s.close(s.catchUp) }

// Drop closes an adopted stream without a question about it, since it may be gone.
func (s *stream) Drop() error {
	return s.close(func() (captured bool, err error) { return true, nil })
}

// close is Close once the last question about an adopted stream was asked.
func (s *stream) close(ask func() (captured bool, err error)) error {
	s.mu.Lock()
	if s.closed.Load() {
		s.mu.Unlock()
		return nil
	}
	capture := s.capture
	s.mu.Unlock()
	var errs []error
	if capture != nil {
		g, err := s.EndCapture()
		if err == nil {
			err = g.Close()
		}
		errs = append(errs, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closingTime(2*s.device.cfg.Timeout))
	defer cancel()
	captured, err := ask()
	errs = append(errs, err, s.finish(ctx))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return errors.Join(errs...)
	}
	switch quiet := s.quiet(); {
	case !quiet:
		s.device.givenUp.Store(true)
	case s.word != nil && !captured:
		s.device.words.put(s.word)
	}
	s.questions.Lock()
	s.closed.Store(true)
	s.questions.Unlock()
	errs = append(errs, s.leave())
	if !s.adopted {
		errs = append(errs, s.device.do(func() error {
			return s.device.cuda.StreamDestroy(s.handle)
		}))
	}
	return errors.Join(errs...)
}

// own returns the stream behind the interface.
func (d *Device) own(on driver.Stream) (*stream, error) {
	if s, ok := on.(*stream); ok && s != nil && s.device == d {
		return s, nil
	}
	return nil, errForeignStream
}

var errForeignStream = errors.New("the stream is of another device")
