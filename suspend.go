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

// States of a suspender.
const (
	poolOpen int32 = iota
	// poolSuspending: the ranks agree and release memory, or return to poolOpen.
	poolSuspending
	poolSuspended
	// poolResuming: memory is being mapped. If there is too little, poolSuspended follows.
	poolResuming
)

// suspender implements Pool.Suspend and Pool.Resume. In all states but poolOpen, Pool.calls and
// segmentTable.refusing make the pool refuse calls. Only the goroutine that has set poolSuspending
// or poolResuming may change the state again; Close waits for it.
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
	state     atomic.Int32
	closes    int      // Pool.Close calls in progress; guarded by mu
	contents  Contents // used only by the goroutine that changes state
}

var errPoolSuspended = &refusalError{
	"pool: suspended: call Pool.Resume on every rank of its domain", ErrSuspended,
}

// changeState returns false without an error if the state is done already.
func (s *suspender) changeState(old, next, done int32) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state := s.state.Load(); {
	case s.segments.closed || s.closes > 0:
		return false, errPoolClosed
	case state == done:
		return false, nil
	case state != old:
		return false, &refusalError{"another goroutine is suspending or resuming the pool", ErrBusy}
	}
	s.state.Store(next)
	return true, nil
}

func (s *suspender) suspend(ctx context.Context, c Contents) (Suspension, error) {
	if begun, err := s.changeState(poolOpen, poolSuspending, poolSuspended); !begun {
		return Suspension{}, err
	}
	s.contents = c
	committed := false
	defer func() {
		if committed {
			s.state.Store(poolSuspended)
			return
		}
		s.setRefusing(false)
		s.pool.calls.Open()
		s.state.Store(poolOpen)
	}()
	s.setRefusing(true)
	busy := s.refuseCalls(ctx)
	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	return s.release(ctx, held, busy, &committed)
}

// refuseCalls waits for the calls in progress. The caller must open Pool.calls again, even after an
// error.
func (s *suspender) refuseCalls(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workLimit(s.timeout()))
	defer cancel()
	s.pool.calls.Close()
	if poll(ctx, s.pool.calls.Empty) == nil {
		return nil
	}
	return &refusalError{"a call on another goroutine uses the pool: let it return first", ErrBusy}
}

func (s *suspender) timeout() time.Duration {
	if g := s.pool.domain; g != nil {
		return g.limit.Get()
	}
	return s.pool.rt.opts.Timeout
}

// release releases memory if all ranks agree, after which it sets committed. busy is an error if
// this rank has calls in progress.
func (s *suspender) release(
	ctx context.Context, held []*segment, busy error, committed *bool,
) (released Suspension, err error) {
	capturing, permitCaptures := s.pool.rt.captures.delayCaptures()
	defer permitCaptures()
	refusal := busy
	if refusal == nil {
		refusal = s.prepare(ctx, held, capturing)
	}
	g := s.pool.domain
	if g == nil && refusal != nil {
		return released, errors.Join(cmp.Or(context.Cause(ctx), refusal), resumeSegments(held))
	}
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if err := s.agree(ctx, g, "suspend, "+s.contents.String(), refusal); err != nil {
			return released, errors.Join(err, resumeSegments(held))
		}
	}
	*committed = true
	errs := []error{s.suspendWindows()}
	for _, seg := range held {
		if err := seg.memory.(driver.SuspendableSegment).Suspend(); err != nil {
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

// agree compares the pool's history and exchanges refusals (reasons against the change), of which
// it returns the first. The caller must hold the domain's Group.mu.
func (s *suspender) agree(ctx context.Context, g *Group, tag string, refusal error) error {
	err := g.aligner.alignAndCompare(ctx, &alignedCall{
		tag: tag, pools: []*Pool{s.pool},
		ledgers: func() []agreement.Ledger { return []agreement.Ledger{s.history.with(nil)} },
	})
	if err != nil {
		return err
	}
	return agreeOnRefusal(ctx, g, refusal)
}

// workLimit limits Suspend's wait for calls and then for work on streams. It is a small part of the
// timeout, because the other ranks wait meanwhile.
func workLimit(timeout time.Duration) time.Duration { return min(time.Second, timeout/4) }

// prepare fails because of unfinished work, a capture or a lack of host memory.
func (s *suspender) prepare(ctx context.Context, held []*segment, capturing bool) error {
	if capturing {
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
		errs = append(errs, w.window.(driver.SuspendableWindow).Suspend())
	}
	return errors.Join(errs...)
}

func (s *suspender) resume(ctx context.Context) error {
	if begun, err := s.changeState(poolSuspended, poolResuming, poolOpen); !begun {
		return err
	}
	mapped, err := s.remap(ctx)
	if !mapped {
		s.state.Store(poolSuspended)
		return err
	}
	err = errors.Join(err, s.resumeWindows(ctx))
	s.setRefusing(false)
	s.state.Store(poolOpen)
	s.pool.calls.Open()
	return err
}

// remap reports whether it has mapped this rank's memory, which requires that all ranks agree
// and have enough memory, unless the domain has failed.
func (s *suspender) remap(ctx context.Context) (mapped bool, err error) {
	g := s.pool.domain
	var fault error
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		fault = s.agree(ctx, g, "resume", checkNotSuspended(s.listWindows()))
		if fault != nil && g.comm.Cause() == nil {
			return false, fault
		}
	}
	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	refusal := resumeSegments(held)
	if g != nil && fault == nil {
		err := agreeOnRefusal(ctx, g, refusal)
		if g.comm.Cause() != nil {
			fault = err
		} else {
			refusal = err
		}
	}
	if refusal != nil {
		return false, errors.Join(fault, refusal, suspendSegments(held, s.contents))
	}
	return true, fault
}

// resumeSegments stops at the first error.
func resumeSegments(held []*segment) error {
	for _, seg := range held {
		if memory, ok := seg.memory.(driver.SuspendableSegment); ok {
			if err := memory.Resume(); err != nil {
				return err
			}
		}
	}
	return nil
}

// suspendSegments undoes a failed resumeSegments.
func suspendSegments(held []*segment, c Contents) error {
	var errs []error
	for _, seg := range held {
		memory := seg.memory.(driver.SuspendableSegment)
		err := memory.PrepareSuspend(c == KeepContents)
		if errors.Is(err, ErrSuspended) {
			continue
		}
		if err == nil {
			err = memory.Suspend()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// resumeWindows omits groups that have failed.
func (s *suspender) resumeWindows(ctx context.Context) error {
	var errs []error
	var g *Group
	defer func() {
		if g != nil {
			g.mu.Unlock()
		}
	}()
	for _, w := range s.listWindows() {
		if w.group != g {
			if g != nil {
				g.mu.Unlock()
			}
			g = w.group
			g.mu.Lock()
		}
		if g.comm.Cause() != nil {
			continue
		}
		if err := w.window.(driver.SuspendableWindow).Resume(ctx); err != nil {
			errs = append(errs, g.life.awaitFault(err))
		}
	}
	return joinWithoutDuplicates(errs...)
}
