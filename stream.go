package symmem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

// Stream is an ordered, asynchronous queue of work.
//
// Ranks need not make the same streams. Each pool numbers those that allocate there by itself: the
// default stream is 0, the others count from 1 in the order of their first Alloc or Reserve in that
// pool. These numbers are in the pool's history, and in the error of ranks that differ.
//
// A stream that is idle may do work before the call that queues it returns. It is safe for
// concurrent use; the order of work is then that of the calls.
//
// States: running; failed, after the first error of its work; running again once Synchronize has
// returned that error. What is queued on a failed stream is not run. Events recorded on it carry
// the error to whoever waits for them, and a collective that is not run fails its group, on all
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
	pools := s.rt.allPools()
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
	return s.rt.awaitStreamCause(err)
}

// drain waits until no work that was queued so far runs on any stream: what it uses may be unmapped
// then. The errors of that work stay with their streams. Streams that are closed take an event as
// long as work of them goes on, and what a capture records uses only memory that the graph pins.
func (rt *Runtime) drain(ctx context.Context) error {
	rt.mu.Lock()
	streams := append([]*Stream(nil), rt.streams...)
	rt.mu.Unlock()
	for _, s := range streams {
		if err := s.drain(ctx); err != nil {
			return fmt.Errorf("waiting for stream %d: %w", s.number, err)
		}
	}
	return nil
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
	if s.captured() { // since before or after the mark, which nobody can tell
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

// awaitStreamCause replaces a backend's error by the cause that the ranks of its group have found.
func (rt *Runtime) awaitStreamCause(err error) error {
	if l := lifetimeOf(err); l != nil {
		return l.awaitCause(err)
	}
	return err
}

// NewEvent makes an event that no stream has recorded yet; such an event is done.
func (rt *Runtime) NewEvent() (*Event, error) {
	if err := rt.usable(); err != nil {
		return nil, err
	}
	mark, err := rt.device.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	return &Event{rt: rt, mark: mark}, nil
}

func (rt *Runtime) streamAt(number alloc.Stream) *Stream {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.streams[number]
}

// addStream makes a stream and numbers it.
func (rt *Runtime) addStream(
	open func() (driver.Stream, driver.AdoptedStream, error),
) (*Stream, error) {
	if err := rt.beginMaking(); err != nil {
		return nil, err
	}
	defer rt.making.Done()
	queue, adopted, err := open()
	if err != nil {
		return nil, fmt.Errorf("making a stream: %w", err)
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if len(rt.streams) == maxStreams {
		err := invalid("making a stream: this runtime has made %d, whose numbers are not used again: "+
			"adopt a stream once and keep it", maxStreams)
		if adopted == nil {
			err = errors.Join(err, queue.Close())
		}
		return nil, err
	}
	s := &Stream{rt: rt, number: alloc.Stream(len(rt.streams)), queue: queue, adopted: adopted}
	rt.streams = append(rt.streams, s)
	return s, nil
}

// apartFromCaptures runs a step that is not allowed on a rank with a capturing stream. It is
// collective: if any rank captures, all return ErrCapturing without running the step. New captures
// wait until it returns.
func (rt *Runtime) apartFromCaptures(
	ctx context.Context, exchange agreement.Exchange, step func() error,
) error {
	capturing, release := rt.holdCaptures()
	defer release()
	mine := []byte{0}
	if capturing {
		mine[0] = 1
	}
	got, err := exchange(ctx, mine)
	if err != nil {
		return err
	}
	for _, theirs := range got {
		if len(theirs) == 1 && theirs[0] == 1 {
			return ErrCapturing
		}
	}
	return step()
}

// noteCapture notes whether an adopted stream may be captured, with calls of ours in the capture.
func (rt *Runtime) noteCapture(s *Stream, may bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.setCaptured(s, may)
}

// setCaptured is noteCapture with rt.mu held.
func (rt *Runtime) setCaptured(s *Stream, may bool) {
	if slices.Contains(rt.captured, s) == may {
		return
	}
	others := slices.DeleteFunc(slices.Clone(rt.captured), func(o *Stream) bool { return o == s })
	if may {
		others = append(others, s)
	}
	rt.captured = others
}

// endCapture notes that a stream captures no more.
func (rt *Runtime) endCapture() {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.captures--
}

// betweenRegistrations takes a step, with rt.mu held, while nothing is being registered. It waits
// for registrations of other goroutines, twice the timeout at most.
func (rt *Runtime) betweenRegistrations(doing string, step func()) error {
	var expired <-chan time.Time
	for {
		rt.mu.Lock()
		over := rt.registered
		if over == nil {
			step()
		}
		rt.mu.Unlock()
		if over == nil {
			return nil
		}
		if expired == nil {
			expired = time.After(rt.closingTime())
		}
		select {
		case <-over:
		case <-expired:
			return &TimeoutError{
				Doing:  doing + ": a registration of another goroutine of this rank has not ended",
				Waited: rt.closingTime(),
			}
		}
	}
}

// holdCaptures reports whether a stream of this rank captures, and lets no other one begin until
// release is called.
func (rt *Runtime) holdCaptures() (capturing bool, release func()) {
	rt.mu.Lock()
	if rt.registering++; rt.registering == 1 {
		rt.registered = make(chan struct{})
	}
	rt.mu.Unlock()
	return rt.capturing(nil), func() {
		rt.mu.Lock()
		defer rt.mu.Unlock()
		if rt.registering--; rt.registering == 0 {
			close(rt.registered)
			rt.registered = nil
		}
	}
}

// capturing reports whether a stream of this rank records: one of our own, the one of a call, or
// one in whose capture a call of ours is. Others are not asked, since their owners may have
// destroyed them.
func (rt *Runtime) capturing(on *Stream) bool {
	rt.mu.Lock()
	own, captured := rt.captures > 0, rt.captured
	rt.mu.Unlock()
	if own || on != nil && on.captured() {
		return true
	}
	for _, s := range captured {
		if s.captured() {
			return true
		}
		rt.noteCapture(s, false)
		if s.captured() { // anew, by a call that has found it noted still
			rt.noteCapture(s, true)
			return true
		}
	}
	return false
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
