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

// Stream is an ordered, asynchronous queue of work.
//
// Ranks need not make the same streams. Each pool numbers the streams that allocate there: the
// default stream is 0, the others count from 1 in the order of their first Alloc or Reserve in that
// pool. These numbers are in the pool's history, and in the error of ranks that differ.
//
// A stream that is idle may do work before the call that queues it returns. It is safe for
// concurrent use; the order of work is then that of the calls.
//
// States: running; failed, after the first error of its work; running again once Synchronize has
// returned that error. What is queued on a failed stream is not run. Events recorded on it carry
// the error to their waiters, and a collective that is not run fails its group, on all
// ranks, with a PriorError. On GPUs what is queued runs on, and only Synchronize returns the error.
type Stream struct {
	rt     *Runtime
	number alloc.Stream
	queue  driver.Stream
	// capturing mirrors the state of queue.
	capturing atomic.Bool
	// recording is held while a capture begins or ends, and while recordEvent records.
	recording ranked.Mutex[streamRecording]
	// captureStart is the event of the begin of the capture under way; guarded by recording.
	captureStart driver.Event
	// pinning is held while a capture begins or ends, and while a buffer is pinned for it. It comes
	// before Pool.mu, which recording comes after.
	pinning ranked.Mutex[streamPinning]
	held    []Memory // buffers that the capture under way has used; guarded by pinning
	// adopted is the queue if another library has made it.
	adopted driver.AdoptedStream
}

// NewStream makes a stream. It is closed with the Runtime.
func (rt *Runtime) NewStream() (*Stream, error) {
	return rt.addStream(func() (driver.Stream, driver.AdoptedStream, error) {
		queue, err := rt.device.NewStream()
		return queue, nil, err
	})
}

// DefaultStream is the stream of calls that are given none.
func (rt *Runtime) DefaultStream() *Stream { return rt.stream }

// Number counts the streams of the Runtime from 0, the default stream, in the order in which this
// rank made them. The numbers in the histories of pools are others: see Stream.
func (s *Stream) Number() int { return int(s.number) }

// Copy copies the bytes of src to dst, which must be as long.
func (s *Stream) Copy(dst, src Memory) error {
	if dst.Bytes() != src.Bytes() {
		return invalid("copying %s into %d: Memory.Slice makes them equally long",
			driver.Plural(src.Bytes(), "byte"), dst.Bytes())
	}
	in, err := enter(dst.pool, src.pool)
	if err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer in.leave(dst.pool, src.pool)
	if err := s.touches(dst, src); err != nil {
		return fmt.Errorf("copying: %w", err)
	}
	defer s.usesStill(dst, src)
	if err := s.queue.Copy(dst.Address(), src.Address(), src.Bytes()); err != nil {
		return err
	}
	return s.keep(dst, src)
}

// Fill sets every byte of dst.
func (s *Stream) Fill(dst Memory, value byte) error {
	in, err := enter(dst.pool, nil)
	if err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	defer in.leave(dst.pool, nil)
	if err := s.touches(dst, dst); err != nil {
		return fmt.Errorf("filling: %w", err)
	}
	defer s.usesStill(dst, dst)
	if err := s.queue.Fill(dst.Address(), value, dst.Bytes()); err != nil {
		return err
	}
	return s.keep(dst, dst)
}

// keep keeps memory that may be a Go slice reachable, and off the caller's stack, until the work
// just queued on it is done; for work in a capture, as long as the graph.
func (s *Stream) keep(a, b Memory) error {
	if a.pool != nil && b.pool != nil {
		return nil
	}
	if !s.capturing.Load() {
		done, err := s.rt.device.NewEvent()
		if err == nil {
			err = s.queue.Record(done)
		}
		if err != nil || done.Done() {
			runtime.KeepAlive(a.start)
			runtime.KeepAlive(b.start)
			return err
		}
	}
	return s.queue.Host(func() {
		runtime.KeepAlive(a.start)
		runtime.KeepAlive(b.start)
	})
}

// Host runs a function of the host in stream order. It must not call into symmem. If it panics or
// calls runtime.Goexit, as testing.T.FailNow does, the stream fails. In a capture of another
// library Host returns ErrUnsupported, as do Copy and Fill of memory that is a Go slice.
func (s *Stream) Host(work func()) error {
	if work == nil {
		return invalid("queueing no function")
	}
	return s.queue.Host(work)
}

// Record marks the event's point: after everything queued so far. In a capture of another library
// it is ErrCapturing: the event would order nothing there.
func (s *Stream) Record(e *Event) error {
	if !e.made() {
		return invalid("recording no event")
	}
	if !s.capturing.Load() && s.captured() {
		return fmt.Errorf("recording an event in a capture of another library: %w", ErrCapturing)
	}
	return s.queue.Record(e.mark)
}

// Wait makes later work of this stream wait for the event's point, without a deadline: the wait
// is for work of this rank. If the work before the point has failed, this stream fails with the
// same error.
func (s *Stream) Wait(e *Event) error {
	if !e.made() {
		return invalid("waiting for no event")
	}
	return s.queue.Wait(e.mark)
}

// Synchronize waits until the stream is idle and returns the first error of its work; after that
// the stream runs again. A fault of a group comes as that group's error. While the stream is
// captured it returns ErrCapturing. The wait is bounded by ctx alone.
//
// It is an event of every pool's history: buffers that were freed while this stream used them, and
// before Synchronize was called, come back to their pools here, and other streams may have memory
// that this stream is done with. Ranks of a domain therefore synchronize in the same places.
func (s *Stream) Synchronize(ctx context.Context) error {
	ctx = orBackground(ctx)
	pools := s.rt.made.allPools()
	before := make([]alloc.Mark, len(pools))
	for i, p := range pools {
		before[i] = p.mark()
	}
	err := s.queue.Synchronize(ctx)
	if errors.Is(err, ErrCapturing) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return err // it has not been waited for
	}
	for i, p := range pools {
		p.reclaimIdle(s, before[i])
	}
	deliverAll(s.rt)
	return awaitStreamCause(err)
}

// streamList holds the streams of a Runtime by number.
type streamList struct {
	mu   *ranked.Mutex[runtimeMu]
	list []*Stream // only appended to; guarded by mu
}

// all returns the streams so far.
func (l *streamList) all() []*Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[:len(l.list):len(l.list)]
}

// at returns the stream with a number.
func (l *streamList) at(number alloc.Stream) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[number]
}

// add numbers a stream and appends it.
func (l *streamList) add(s *Stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == maxStreams {
		return invalid("making a stream: this runtime has made %d, whose numbers are not used again: "+
			"adopt a stream once and keep it", maxStreams)
	}
	s.number = alloc.Stream(len(l.list))
	l.list = append(l.list, s)
	return nil
}

// drain waits until the work queued so far has ended on all streams, after which the memory that it
// uses may be unmapped. Errors of that work stay with their streams. A closed stream accepts an
// event as long as it has work, and a capture uses only memory that its graph pins.
func (l *streamList) drain(ctx context.Context) error {
	for _, s := range l.all() {
		if err := s.drain(ctx); err != nil {
			return fmt.Errorf("waiting for stream %d: %w", s.number, err)
		}
	}
	return nil
}

// close closes all streams at once, so that several whose work does not end take no longer than
// one. It returns the errors of each.
func (l *streamList) close() (errs []error) {
	streams := l.all()
	closed := make([]error, len(streams))
	var closing sync.WaitGroup
	for i, s := range streams {
		closing.Go(func() { closed[i] = s.close() })
	}
	closing.Wait()
	for _, err := range closed {
		for _, err := range parts(err) {
			errs = append(errs, awaitStreamCause(err))
		}
	}
	return errs
}

func (s *Stream) drain(ctx context.Context) error {
	if s.mayBeGone() {
		return nil
	}
	if s.captured() {
		return ErrCapturing
	}
	mark, err := s.recordEvent()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.captured() { // the capture may have begun before or after the mark
		return ErrCapturing
	}
	if err := mark.Synchronize(ctx); err != nil && !mark.Done() {
		return err
	}
	return nil
}

// mayBeGone reports whether the owner of an adopted stream may have destroyed it, so that it must
// not be asked about. Its work is done then.
func (s *Stream) mayBeGone() bool { return s.adopted != nil && s.rt.ownersWait.Load() }

// close ends a stream. One of another library is its owner's to destroy.
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
	if s.captured() {
		s.rt.Interop().ForgetStream(s)
		return nil
	}
	return s.forget(driver.AdoptedStream.Close)
}

// records reports whether what is queued on the stream now becomes a part of a capture.
func (s *Stream) records() bool { return s.capturing.Load() || s.captured() }

// touches checks that memory is somebody's still, and notes that this stream works on it.
func (s *Stream) touches(a, b Memory) error {
	for _, m := range [...]Memory{a, b} {
		if m.pool == nil {
			continue
		}
		if _, err := m.pool.blockOf(m); err != nil {
			return err
		}
	}
	return s.uses(a, b)
}

// borrows reports whether the use of a call's buffers is recorded: they are of other streams, or
// the call is captured. Go inlines it.
func (s *Stream) borrows(c *collective) bool {
	return s.capturing.Load() || c.norm != nil ||
		c.send.extent.isOther(s.number) || c.recv.extent.isOther(s.number)
}

// uses notes that this stream works on memory: buffers of other streams are kept until the work
// is done, and buffers used in a capture are pinned. Once the work is queued the call notes it
// again, by usesStill.
func (s *Stream) uses(a, b Memory) error {
	return errors.Join(s.use(a), s.use(b))
}

// usesStill is uses once the work is queued: a Synchronize of another goroutine in between has not
// waited for it, and ends the use that was noted before.
func (s *Stream) usesStill(a, b Memory) {
	for _, m := range [...]Memory{a, b} {
		if m.tracked() && m.extent.stream() != s.number {
			m.pool.useAgain(m, s)
		}
	}
}

func (s *Stream) use(m Memory) error {
	if !m.tracked() {
		return nil
	}
	if s.capturing.Load() {
		if captures, err := s.pinned(m); captures {
			return err
		}
	}
	if m.extent.stream() != s.number {
		return m.pool.use(Buffer{m}, s)
	}
	return nil
}

// awaitStreamCause replaces a fault of a group, which a stream has returned, by the cause that the
// ranks of the group have determined.
func awaitStreamCause(err error) error {
	if l := lifetimeOf(err); l != nil {
		return l.awaitCause(err)
	}
	return err
}

// NewEvent makes an event that no stream has recorded yet; such an event is done.
func (rt *Runtime) NewEvent() (*Event, error) {
	if err := rt.making.usable(); err != nil {
		return nil, err
	}
	mark, err := rt.device.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	return &Event{rt: rt, mark: mark}, nil
}

// addStream makes a stream and numbers it.
func (rt *Runtime) addStream(
	open func() (driver.Stream, driver.AdoptedStream, error),
) (*Stream, error) {
	if err := rt.making.begin(); err != nil {
		return nil, err
	}
	defer rt.making.done()
	queue, adopted, err := open()
	if err != nil {
		return nil, fmt.Errorf("making a stream: %w", err)
	}
	s := &Stream{rt: rt, queue: queue, adopted: adopted}
	if err := rt.streams.add(s); err != nil {
		if adopted == nil {
			err = errors.Join(err, queue.Close())
		}
		return nil, err
	}
	return s, nil
}

// Handle is the stream as other libraries know it, so that they can queue work on it: a CUstream on
// GPUs, which is also a cudaStream_t, and 0 where there is none, as on the host. It is valid until
// the Runtime is closed, and the same each time.
//
// Foreign work is ordered with symmem's by the order of calls, Synchronize waits for it, and while
// the stream captures it becomes a part of the capture. symmem does not see what memory it uses:
// the caller notes that by Buffer.UseOn for buffers of another stream, and frees what a capture
// uses only after its graph is closed. The thread that queues the work needs the GPU's primary
// context as its current one.
func (s *Stream) Handle() uintptr {
	if native, ok := s.queue.(driver.Native); ok {
		return native.Handle()
	}
	return 0
}
