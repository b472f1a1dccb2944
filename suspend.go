package symmem

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// Suspension describes the memory that Suspend has released. See [driver.Suspension].
type Suspension = driver.Suspension

// Contents selects what happens to a pool's contents while the pool is suspended.
type Contents int

const (
	// DiscardContents leaves zeros after Resume.
	DiscardContents Contents = iota
	// KeepContents copies the contents to pageable host memory and back.
	KeepContents
)

// String returns a name for messages.
func (c Contents) String() string {
	if c == KeepContents {
		return "keep contents"
	}

	return "discard contents"
}

// States of a pool or a group that can be suspended.
const (
	stateOpen int32 = iota // not suspended
	// stateSuspending: the ranks agree and release memory, or return to stateOpen.
	stateSuspending
	stateSuspended
	// stateResuming: memory is being mapped. If there is too little, stateSuspended follows.
	stateResuming
)

// suspender implements Pool.Suspend and Pool.Resume. In all states but stateOpen, Pool.calls and
// segmentTable.refusing make the pool refuse calls. Only the goroutine that has set stateSuspending
// or stateResuming may change the state again; Close waits for it.
//
// Suspend closes Pool.calls before it locks Group.mu of the domain, because a call in progress may
// wait for that lock. Resume unlocks the domain's Group.mu before it locks Group.mu of each group
// with windows, one at a time and sorted by key on all ranks. Pool.mu is held only while segments
// or windows are listed.
type suspender struct {
	mu        *ranked.Spin[poolMu]
	pool      *Pool
	segments  *segmentTable
	registrar *registrar
	history   *history
	state     atomic.Int32 // stateOpen, stateSuspending, stateSuspended or stateResuming
	closes    int          // Pool.Close calls in progress; guarded by mu
	contents  Contents     // used only by the goroutine that changes state
}

var errPoolSuspended = &refusalError{
	text: "pool: suspended: call Pool.Resume on every rank of its domain", kind: ErrSuspended,
}

// beginChange changes the state from old to next, in which the pool is being suspended or resumed.
// If the state is target already, it returns false and no error.
func (s *suspender) beginChange(old, next, target int32) (hasBegun bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isBeingClosed := s.closes > 0
	if s.segments.closed || isBeingClosed {
		return false, errPoolClosed
	}

	switch s.state.Load() {
	case target:
		return false, nil
	case old:
		s.state.Store(next)
		return true, nil
	default:
		return false, &refusalError{
			text: "another goroutine is suspending or resuming the pool", kind: ErrBusy,
		}
	}
}

// suspend implements Pool.Suspend.
func (s *suspender) suspend(ctx context.Context, c Contents) (Suspension, error) {
	hasBegun, err := s.beginChange(stateOpen, stateSuspending, stateSuspended)
	if !hasBegun {
		return Suspension{}, err
	}

	s.contents = c
	isReleased := false // set by release before it releases memory
	defer func() {
		if isReleased {
			s.state.Store(stateSuspended)
			return
		}

		s.setRefusing(false)
		s.pool.calls.Open()
		s.state.Store(stateOpen)
	}()
	s.setRefusing(true)
	busy := s.refuseCalls(ctx)
	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	return s.release(ctx, held, busy, &isReleased)
}

// refuseCalls makes new calls fail and waits for the calls in progress. The caller must open
// Pool.calls again, even after an error.
func (s *suspender) refuseCalls(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workLimit(s.timeout()))
	defer cancel()
	s.pool.calls.Close()
	if poll(ctx, s.pool.calls.Empty) == nil {
		return nil
	}

	return &refusalError{
		text: "a call on another goroutine uses the pool: let it return first", kind: ErrBusy,
	}
}

// timeout returns the timeout of the domain or, without a domain, of the Runtime.
func (s *suspender) timeout() time.Duration {
	if g := s.pool.domain; g != nil {
		return g.limit.Get()
	}

	return s.pool.rt.opts.Timeout
}

// release releases memory if all ranks agree. Once they have agreed, it sets isReleased. busy is an
// error if this rank has calls in progress, and otherwise nil.
func (s *suspender) release(
	ctx context.Context, held []*segment, busy error, isReleased *bool,
) (released Suspension, err error) {
	isCapturing, permitCaptures := s.pool.rt.captures.delayCaptures()
	defer permitCaptures()
	refusal := busy
	if refusal == nil {
		refusal = s.prepare(ctx, held, isCapturing)
	}

	g := s.pool.domain
	if g == nil && refusal != nil {
		resumeErr := resumeSegments(held) // undoes prepare
		return released, errors.Join(cmp.Or(context.Cause(ctx), refusal), resumeErr)
	}

	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		err := s.agree(ctx, g, "suspend, "+s.contents.String(), refusal)
		if err != nil {
			resumeErr := resumeSegments(held)
			return released, errors.Join(err, resumeErr)
		}
	}

	*isReleased = true
	errs := []error{s.suspendWindows()}
	for _, seg := range held {
		memory := seg.memory.(driver.SuspendableSegment) // prepare has checked the type
		if err := memory.Suspend(); err != nil {
			errs = append(errs, err)
			continue
		}

		released.Released += seg.bytes
	}

	if g != nil { // the memory is free once all ranks have unmapped it
		if _, err := g.comm.Exchange(ctx, driver.LaneControl, nil); err != nil {
			errs = append(errs, g.life.awaitFault(err))
		}
	}

	return released, errors.Join(errs...)
}

// agree compares the pool's history, and exchanges refusals (reasons against the change). If some
// rank refuses, all ranks return its refusal. The caller must hold the domain's Group.mu.
func (s *suspender) agree(ctx context.Context, g *Group, tag string, refusal error) error {
	err := g.aligner.realignAndCompare(ctx, &sharedCall{
		tag: tag, pools: []*Pool{s.pool},
		histories: func() []agreement.Ledger { return []agreement.Ledger{s.history.with(nil)} },
	})
	if err != nil {
		return err
	}

	return agreeOnRefusal(ctx, g, refusal)
}

// workLimit limits Suspend's wait for calls and then for work on streams. It is a small part of the
// timeout, because the other ranks wait meanwhile.
func workLimit(timeout time.Duration) time.Duration { return min(time.Second, timeout/4) }

// prepare waits for queued work, and prepares the windows and segments. It returns an error if
// there is unfinished work, a capture, or too little host memory for the contents.
func (s *suspender) prepare(ctx context.Context, held []*segment, isCapturing bool) error {
	if isCapturing {
		return ErrCapturing
	}

	if err := awaitAllStreams(ctx, s.pool.rt, workLimit(s.timeout())); err != nil {
		return err
	}

	windows := s.listWindows()
	if err := checkNotSuspended(windows); err != nil {
		return err
	}

	if err := checkAdoptedWindows(s.pool.rt, held); err != nil {
		return err
	}

	for _, w := range windows {
		window, ok := w.window.(driver.SuspendableWindow)
		if !ok {
			return ErrUnsupported
		}

		if err := window.PrepareSuspend(); err != nil {
			return err
		}
	}

	for _, seg := range held {
		memory, ok := seg.memory.(driver.SuspendableSegment)
		if !ok {
			return ErrUnsupported
		}

		if err := memory.PrepareSuspend(s.contents == KeepContents); err != nil {
			return err
		}
	}

	return nil
}

// suspendWindows ends this rank's access to the memory of its peers.
func (s *suspender) suspendWindows() error {
	var errs []error
	for _, w := range s.listWindows() {
		window := w.window.(driver.SuspendableWindow) // prepare has checked the type
		errs = append(errs, window.Suspend())
	}

	return errors.Join(errs...)
}

// setRefusing sets whether the pool refuses allocations. A closed pool always refuses them.
func (s *suspender) setRefusing(isRefusing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments.refusing = isRefusing || s.segments.closed
}

// addCloseCalls adds 1 or -1 to the number of Pool.Close calls in progress.
func (s *suspender) addCloseCalls(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closes += change
}

// awaitStateChange waits until no Suspend or Resume of the pool is in progress.
func (s *suspender) awaitStateChange(ctx context.Context) error {
	isStable := func() bool {
		state := s.state.Load()
		return state == stateOpen || state == stateSuspended
	}
	return poll(ctx, isStable)
}
