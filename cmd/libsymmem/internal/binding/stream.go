package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
)

// streams implements the functions in symmem.h for streams of another library (foreign streams)
// and for events on them.
type streams struct{ session *session }

// streamUse is the symmem.Stream by which one rank uses a foreign stream. A process can have a rank
// in each of several worlds.
type streamUse struct {
	rank   *rank
	stream *symmem.Stream
}

// uses returns the uses of a foreign stream by all ranks of this process. If no rank has used the
// stream, the rank that anyRank returns adopts it.
func (st *streams) uses(handle uintptr) ([]streamUse, error) {
	all := st.existingUses(handle)
	if len(all) > 0 {
		return all, nil
	}

	first, err := st.session.anyRank()
	if err != nil {
		return nil, err
	}

	s, err := first.findStream(handle)
	return []streamUse{{first, s}}, err
}

// existingUses returns the uses of a foreign stream, or nil if no rank has used the stream.
func (st *streams) existingUses(handle uintptr) []streamUse {
	var all []streamUse
	for _, r := range st.session.ranks.allRanks() {
		if s, ok := r.streams.find(handle); ok {
			all = append(all, streamUse{r, s})
		}
	}

	return all
}

// Synchronize waits until a stream is idle and returns the first error of the stream's work.
func (st *streams) Synchronize(handle uintptr) error {
	if err := st.checkCapture("synchronizing", handle); err != nil {
		return err
	}

	uses, err := st.uses(handle)
	if err != nil {
		return err
	}

	var firstErr error
	for _, u := range uses {
		err := st.session.runResumable("synchronizing", u.stream.Synchronize)
		if errors.Is(err, symmem.ErrInterrupted) {
			return err
		}

		if firstErr == nil {
			firstErr = err
		}
	}

	return firstErr
}

// checkCapture returns an error if a stream is being captured to a CUDA graph. It asks a rank that
// uses the stream, because handles of the host backend are no CUDA streams.
func (st *streams) checkCapture(operation string, handle uintptr) error {
	r, err := st.session.anyRank()
	if err != nil {
		return nil //nolint:nilerr // the caller then gets the same error from uses
	}

	uses := st.existingUses(handle)
	if len(uses) > 0 {
		r = uses[0].rank
	}

	if r.rt.Interop().IsCapturing(handle) {
		return fmt.Errorf("%s stream %#x: %w", operation, handle, symmem.ErrCapturing)
	}

	return nil
}

// SetIdle records whether the device is idle. Trim and Close do not query streams of an idle
// device.
func (st *streams) SetIdle(idle bool) error {
	if err := st.session.checkOpen(); err != nil {
		return err
	}

	for _, r := range st.session.ranks.allRanks() {
		r.rt.Interop().SetIdle(idle)
	}

	return nil
}

// ForgetStream removes a stream that its owner is about to destroy.
func (st *streams) ForgetStream(handle uintptr) error {
	if err := st.session.checkOpen(); err != nil {
		return err
	}

	st.session.lastUses.remove(handle)
	for _, r := range st.session.ranks.allRanks() {
		forgotten, ok := r.streams.remove(handle)
		if !ok {
			continue
		}

		// ForgetStream may wait for work that depends on other streams, so no lock may be held.
		err := st.session.runInterruptible("forgetting a stream", func(context.Context) error {
			r.rt.Interop().ForgetStream(forgotten)
			return nil
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// event marks one point in the work of a foreign stream, on each rank that uses the stream.
type event []eventMark

type eventMark struct {
	rank  *rank
	event *symmem.Event
}

// belongsTo reports whether no rank other than r has a mark of the event.
func (e event) belongsTo(r *rank) bool {
	isOfOther := func(m eventMark) bool { return m.rank != r }
	return !slices.ContainsFunc(e, isOfOther)
}

// RecordEvent records an event after the work queued so far on a foreign stream and returns the
// event's handle.
func (st *streams) RecordEvent(stream uintptr) (uint64, error) {
	if err := st.checkCapture("recording an event on", stream); err != nil {
		return 0, err
	}

	uses, err := st.uses(stream)
	if err != nil {
		return 0, err
	}

	marks := make(event, len(uses))
	for i, u := range uses {
		mark, err := u.record()
		if err != nil {
			return 0, fmt.Errorf("recording an event on stream %#x: %w", stream, err)
		}

		marks[i] = eventMark{u.rank, mark}
	}

	return st.session.addEvent(marks), nil
}

// recordUnlessDone records an event and returns its handle. On the host backend, it returns 0 if
// all work of the stream has completed without an error.
func (s *session) recordUnlessDone(u streamUse) (uint64, error) {
	mark, err := u.record()
	if err != nil {
		return 0, err
	}

	if u.rank.isHostBackend && mark.Done() {
		err := mark.Synchronize(context.Background()) // does not wait
		if err == nil {
			return 0, nil
		}

		// Waiting for the event returns the error later.
	}

	marks := event{{rank: u.rank, event: mark}}
	return s.addEvent(marks), nil
}

// addEvent adds an event and returns its new handle.
func (s *session) addEvent(marks event) uint64 {
	handle := s.lastHandle.Add(1)
	s.events.set(handle, marks)
	return handle
}

// record records a new event after the work queued so far.
func (u streamUse) record() (*symmem.Event, error) {
	e, err := u.rank.rt.NewEvent()
	if err != nil {
		return e, err
	}

	err = u.stream.Record(e)
	return e, err
}

func (st *streams) event(handle uint64) (event, error) {
	e, ok := st.session.events.find(handle)
	if !ok {
		return nil, st.session.unknownHandleError("event", handle)
	}

	return e, nil
}

// IsEventDone reports whether the work before an event has completed. It returns true for closed
// events.
func (st *streams) IsEventDone(handle uint64) bool {
	e, err := st.event(handle)
	if err != nil {
		return true
	}

	isPending := func(m eventMark) bool { return !m.event.Done() }
	return !slices.ContainsFunc(e, isPending)
}

// WaitForEvent waits until the work before an event has completed.
func (st *streams) WaitForEvent(handle uint64) error {
	e, err := st.event(handle)
	if err != nil {
		return err
	}

	for _, m := range e {
		if err := st.session.runResumable("waiting for an event", m.event.Synchronize); err != nil {
			return err
		}
	}

	return nil
}

// WaitForEventUntil waits like WaitForEvent, but returns a TimeoutError after timeoutMS
// milliseconds.
func (st *streams) WaitForEventUntil(handle uint64, timeoutMS int64) error {
	e, err := st.event(handle)
	if err != nil {
		return err
	}

	const operation = "waiting for an event"
	timeout, err := timeoutOf(timeoutMS)
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}

	wholeWait, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for _, m := range e {
		err := st.session.runResumable(operation, func(untilPoll context.Context) error {
			// End with untilPoll, or with the whole wait.
			ctx, cancelWith := context.WithCancelCause(untilPoll)
			defer cancelWith(nil)
			stopAfterFunc := context.AfterFunc(wholeWait, func() { cancelWith(errWaitTimeout) })
			defer stopAfterFunc()
			return m.event.Synchronize(ctx)
		})
		if errors.Is(err, errWaitTimeout) {
			return &symmem.TimeoutError{InCall: operation, Waited: timeout}
		}

		if err != nil {
			return err
		}
	}

	return nil
}

var errWaitTimeout = errors.New("the wait has reached its timeout")

// CloseEvent removes an event. Streams that already wait for the event keep waiting.
func (st *streams) CloseEvent(handle uint64) error {
	if _, err := st.event(handle); err != nil {
		return err
	}

	st.session.events.remove(handle)
	return nil
}

// StreamWait makes later work on a foreign stream wait for an event.
func (st *streams) StreamWait(stream uintptr, handle uint64) error {
	e, err := st.event(handle)
	if err != nil {
		return err
	}

	uses, err := st.uses(stream)
	if err != nil {
		return err
	}

	for _, u := range uses {
		for _, m := range e {
			if err := u.stream.Wait(m.event); err != nil {
				return err
			}
		}
	}

	return nil
}

// lastUse records which rank last used a foreign stream.
type lastUse struct {
	mu   sync.Mutex
	rank atomic.Pointer[rank] // nil if unknown; written with mu held
}

// waitForOthers makes the work of use.rank on a foreign stream wait for earlier work of other
// ranks. It is for the host backend, where each rank has a symmem.Stream for the handle.
func (last *lastUse) waitForOthers(use streamUse, handle uintptr) error {
	last.mu.Lock()
	defer last.mu.Unlock()
	previous := last.rank.Load()
	if previous == use.rank {
		return nil
	}

	for _, other := range use.rank.session.ranks.allRanks() {
		if other == use.rank {
			continue
		}

		if previous != nil && previous != other {
			continue // the work of previous has waited for that of other
		}

		otherStream, hasUsed := other.streams.find(handle)
		if !hasUsed {
			continue
		}

		otherUse := streamUse{rank: other, stream: otherStream}
		mark, err := otherUse.record()
		if err == nil {
			err = use.stream.WaitIgnoringErrors(mark)
		}

		if err != nil && !errors.Is(err, symmem.ErrClosed) { // the other world may be closing
			return err
		}
	}

	last.rank.Store(use.rank)
	return nil
}
