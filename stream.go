package symmem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

// Stream is an ordered, asynchronous queue of work. It is safe for concurrent use. An idle stream
// may run work before the call that queues it returns.
//
// Each pool numbers the streams that allocate from it, from 1 in the order of their first
// allocation; the default stream is 0. Histories and DivergenceErrors contain these numbers.
//
// After a failure, a stream does not run work until Synchronize has returned the error, and waits
// for its events return the error. If a collective is not run, its group fails with a PriorError on
// all ranks. On GPUs, however, queued work continues to run, and only Synchronize returns the
// error.
type Stream struct {
	rt        *Runtime
	number    alloc.Stream
	queue     driver.Stream
	capturing atomic.Bool
	// recording is held while a capture begins or ends, and in recordEvent.
	recording ranked.Mutex[streamRecording]
	// captureStart completes after the work that was queued before the current capture; guarded by
	// recording.
	captureStart driver.Event
	// pinning is held while a capture begins or ends, and while buffers are pinned for it. Unlike
	// recording, it is acquired before Pool.mu.
	pinning ranked.Mutex[streamPinning]
	// pinned lists memory that the current capture uses. It stays allocated until the captured
	// graph is closed. Guarded by pinning.
	pinned []Memory
	// untrackedPools lists pools with memory that the capture uses, but whose uses nothing records.
	// Guarded by pinning.
	untrackedPools []*Pool
	groups         []*Group // with calls in the capture; guarded by pinning
	// adopted is queue, if another library has created the stream, and otherwise nil.
	adopted driver.AdoptedStream
}

// Number returns the number of the stream in the Runtime: 0 for the default stream, and others from
// 1 in the order of creation. Pools use different numbers.
func (s *Stream) Number() int { return int(s.number) }

// Copy copies the bytes of src to dst, which must have the same length.
func (s *Stream) Copy(dst, src Memory) error {
	if dst.Bytes() != src.Bytes() {
		return invalid("copying %s into %d: use Memory.Slice to make the lengths equal",
			driver.Plural(src.Bytes(), "byte"), dst.Bytes())
	}

	use, err := enterPools(dst.pool, src.pool)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer use.leave(dst.pool, src.pool)
	if err := s.checkAndUse(dst, src); err != nil {
		return fmt.Errorf("copying: %w", err)
	}

	defer s.useAgain(dst, src)
	if err := s.queue.Copy(dst.Address(), src.Address(), src.Bytes()); err != nil {
		return err
	}

	return s.keepReachable(dst, src)
}

// Fill sets every byte of dst to value.
func (s *Stream) Fill(dst Memory, value byte) error {
	use, err := enterPools(dst.pool, nil)
	if err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	defer use.leave(dst.pool, nil)
	if err := s.checkAndUse(dst, dst); err != nil {
		return fmt.Errorf("filling: %w", err)
	}

	defer s.useAgain(dst, dst)
	if err := s.queue.Fill(dst.Address(), value, dst.Bytes()); err != nil {
		return err
	}

	return s.keepReachable(dst, dst)
}

// keepReachable keeps Go slices reachable until the work just queued on them is complete or its
// graph is closed. It moves them off the caller's stack.
func (s *Stream) keepReachable(a, b Memory) error {
	mayBeSlice := a.pool == nil || b.pool == nil
	if !mayBeSlice {
		return nil
	}

	if !s.capturing.Load() {
		done, err := s.rt.device.NewEvent()
		if err == nil {
			err = s.queue.Record(done)
		}

		if err != nil || done.Done() { // the work is complete already
			runtime.KeepAlive(a.start)
			runtime.KeepAlive(b.start)
			return err
		}
	}

	return s.queue.Host(func() { // runs after the work
		runtime.KeepAlive(a.start)
		runtime.KeepAlive(b.start)
	})
}

// Host runs a function on the host in stream order. It must not call symmem. If it panics or calls
// runtime.Goexit, the stream fails. During another library's capture, Host returns ErrUnsupported.
func (s *Stream) Host(work func()) error {
	if work == nil {
		return invalid("queueing a nil function")
	}

	return s.queue.Host(work)
}

// Record sets the event's point to the end of the work queued so far. During another library's
// capture, it returns ErrCapturing.
func (s *Stream) Record(e *Event) error {
	if !e.isValid() {
		return invalid("recording a nil or zero event")
	}

	if !s.capturing.Load() && s.isCapturing() {
		return fmt.Errorf("recording an event on a stream that another library is capturing: %w",
			ErrCapturing)
	}

	return s.queue.Record(e.mark)
}

// Wait makes later work of this stream wait for the event's point, without a deadline. If the work
// before the point has failed, this stream fails with the same error. The event may belong to
// another Runtime with the same backend.
func (s *Stream) Wait(e *Event) error {
	if !e.isValid() {
		return invalid("waiting for a nil or zero event")
	}

	return s.queue.Wait(e.mark)
}

// WaitIgnoringErrors is Wait, but ignores failures of the work before the point.
func (s *Stream) WaitIgnoringErrors(e *Event) error {
	if !e.isValid() {
		return invalid("waiting for a nil or zero event")
	}

	return s.queue.WaitIgnoringErrors(e.mark)
}

// Synchronize waits until the stream is idle and returns the first error of its work. A failed
// stream then runs work again. For a fault of a group, it returns the cause on which the ranks have
// agreed. During a capture, it returns ErrCapturing. Only ctx limits the wait.
//
// Synchronize affects the history of every pool, because buffers and memory that this stream no
// longer uses become available. Ranks of a domain must therefore synchronize at the same points.
func (s *Stream) Synchronize(ctx context.Context) error {
	ctx = orBackground(ctx)
	pools := s.rt.registry.allPools()
	marks := make([]alloc.Mark, len(pools))
	for i, p := range pools {
		marks[i] = p.uses.mark()
	}

	err := s.queue.Synchronize(ctx)
	isCanceled := ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
	if isCanceled || errors.Is(err, ErrCapturing) {
		return err // the work may still be running
	}

	for i, p := range pools {
		p.uses.reclaim(s, marks[i])
	}

	deliverAll(s.rt)
	return awaitStreamCause(err)
}

// streamList lists the streams of a Runtime by number.
type streamList struct {
	mu   *ranked.Mutex[runtimeMu]
	list []*Stream // only appended to; guarded by mu
}

// all returns the current list, which callers must not modify.
func (l *streamList) all() []*Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[:len(l.list):len(l.list)]
}

// find returns the stream with a number, which must exist.
func (l *streamList) find(number alloc.Stream) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[number]
}

// add adds a new stream and gives it its number.
func (l *streamList) add(s *Stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == maxStreams {
		return invalid("creating a stream: this runtime already has %d streams, the maximum: adopt each "+
			"stream once and keep it", maxStreams)
	}

	s.number = alloc.Stream(len(l.list))
	l.list = append(l.list, s)
	return nil
}

// drain waits for the queued work of all streams. It does not wait for work that symmem is
// capturing, because a capture pins its memory. If another library is capturing a stream, it
// returns ErrCapturing.
func (l *streamList) drain(ctx context.Context) error {
	for _, s := range l.all() {
		if err := s.drain(ctx); err != nil {
			return fmt.Errorf("waiting for stream %d: %w", s.number, err)
		}
	}

	return nil
}

// close closes all streams concurrently.
func (l *streamList) close() (errs []error) {
	streams := l.all()
	closeErrs := make([]error, len(streams)) // elements can be nil
	var closing sync.WaitGroup
	for i, s := range streams {
		closing.Go(func() { closeErrs[i] = s.close() })
	}

	closing.Wait()
	for _, joined := range closeErrs {
		for _, err := range splitJoined(joined) {
			errs = append(errs, awaitStreamCause(err))
		}
	}

	return errs
}

// drain is streamList.drain for one stream.
func (s *Stream) drain(ctx context.Context) error {
	if s.mayBeGone() {
		return nil
	}

	if s.isCapturing() {
		return ErrCapturing
	}

	mark, err := s.recordEvent()
	if errors.Is(err, ErrClosed) {
		return nil // a closed stream has no unfinished work
	}

	if err != nil {
		return err
	}

	if s.isCapturing() { // the capture may have begun before the mark was recorded
		return ErrCapturing
	}

	syncErr := mark.Synchronize(ctx)
	if syncErr != nil && !mark.Done() {
		return syncErr
	}

	return nil // complete, even if the work has failed
}

// mayBeGone reports whether the owner of an adopted stream may have destroyed it. If so, the stream
// has no work left, and must not be queried.
func (s *Stream) mayBeGone() bool { return s.adopted != nil && s.rt.adoptedIdle.Load() }

// close ends the use of the stream. It waits for the stream's work, except for an adopted stream
// that its owner may have destroyed or is capturing.
func (s *Stream) close() error {
	if s.adopted == nil {
		err := s.queue.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("closing stream %d: %w", s.number, err)
		}

		return err
	}

	if s.mayBeGone() {
		return s.forget(driver.AdoptedStream.Drop)
	}

	if s.isCapturing() {
		s.rt.Interop().ForgetStream(s)
		return nil
	}

	return s.forget(driver.AdoptedStream.Close)
}

// inCapture reports whether symmem or another library is capturing the stream.
func (s *Stream) inCapture() bool { return s.capturing.Load() || s.isCapturing() }

// checkAndUse is useBoth for memory that may have been freed: it then returns ErrFreed.
func (s *Stream) checkAndUse(a, b Memory) error {
	for _, m := range [...]Memory{a, b} {
		if m.pool == nil {
			continue
		}

		if _, err := m.pool.blockOf(m); err != nil {
			return err
		}
	}

	return s.useBoth(a, b)
}

// mustRecordUse reports whether a collective on this stream must call useBoth. A collective that
// uses only this stream's buffers need not.
func (s *Stream) mustRecordUse(c *collective) bool {
	if s.capturing.Load() || c.norm != nil {
		return true
	}

	return c.send.extent.needsRecordedUse(s.number) || c.recv.extent.needsRecordedUse(s.number)
}

// useBoth records that this stream uses a and b. Their blocks are then not reused before the work
// is complete or, during a capture, before the graph is closed. The caller must call useAgain once
// the work is queued.
func (s *Stream) useBoth(a, b Memory) error {
	aErr := s.use(a)
	bErr := s.use(b)
	return errors.Join(aErr, bErr)
}

// useAgain records the uses of useBoth again. It is necessary because a Synchronize of another
// goroutine may have ended the first use without waiting for the work.
func (s *Stream) useAgain(a, b Memory) {
	for _, m := range [...]Memory{a, b} {
		if m.isTracked() && m.extent.stream() != s.number {
			m.pool.uses.renewUse(m, s)
		}
	}
}

// use is useBoth for one range of memory.
func (s *Stream) use(m Memory) error {
	if !m.isTracked() {
		s.addUntrackedPool(m.pool)
		return nil
	}

	if s.capturing.Load() {
		isCapturing, err := s.pin(m)
		if isCapturing {
			return err
		}

		// The capture has just ended.
	}

	if m.extent.stream() != s.number {
		return m.pool.uses.addUse(m, s)
	}

	return nil
}

// awaitStreamCause replaces a fault of a group (an error that makes the group fail) by the cause on
// which its ranks agree, and waits for the cause. It returns other errors, and nil, unchanged.
func awaitStreamCause(err error) error {
	if l := lifetimeOf(err); l != nil {
		return l.awaitFault(err)
	}

	return err
}

// Handle returns the CUstream (a cudaStream_t) on which other libraries can queue work, or 0 on the
// host backend. It is valid until the Runtime is closed.
//
// Synchronize and captures include the work of other libraries, but symmem does not know its
// memory. The caller must call Buffer.UseOn for buffers of another stream, and must not free
// buffers that a capture uses until its graph is closed. The GPU's primary context must be current
// on the thread.
func (s *Stream) Handle() uintptr {
	if native, ok := s.queue.(driver.Native); ok {
		return native.Handle()
	}

	return 0
}
