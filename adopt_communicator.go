package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/ranked"
)

// AdoptedCommunicator registers this rank's pools with another library's communicator, whose calls
// can then use windows (memory that NCCL has registered on all ranks). With a group, it registers
// segments with the group as well.
//
// The owner must not use the communicator during Register, and must call Detach or Forget before it
// destroys the communicator. After a failure, Register always returns the same error. Methods may
// be called concurrently.
type AdoptedCommunicator struct {
	rt     *Runtime
	group  *Group // may be nil
	name   string
	native driver.AdoptedCommunicator // the backend's

	mu        ranked.Mutex[adoptedMu]        // held during registration
	failed    error                          // the result of later registrations; guarded by mu
	windowsMu ranked.Mutex[adoptedWindowsMu] // guards windows; held while one is deregistered
	windows   map[*segment]driver.Window
}

// AdoptCommunicator adopts an ncclComm_t of the copy of NCCL that symmem uses. The name appears in
// errors, and must be the same on all ranks. If g is not nil, it must have the same ranks in the
// same order. On the host backend and with Options.Deterministic, the call returns ErrUnsupported.
func (i Interop) AdoptCommunicator(
	handle uintptr, name string, g *Group,
) (*AdoptedCommunicator, error) {
	rt := i.rt
	if err := rt.registry.beginCreation(); err != nil {
		return nil, err
	}

	defer rt.registry.endCreation()
	if err := rt.opts.rejectDeterministic(fmt.Sprintf("adopting communicator %q", name)); err != nil {
		return nil, err
	}

	adopter, ok := rt.device.(driver.Adopter)
	if !ok {
		return nil, fmt.Errorf("adopting communicator %q: %w", name, ErrUnsupported)
	}

	native, err := adopter.AdoptCommunicator(handle)
	if err != nil {
		return nil, fmt.Errorf("adopting communicator %q: %w", name, err)
	}

	if g != nil {
		isSameRank := native.Rank() == g.rank && native.Size() == len(g.ranks)
		if !isSameRank {
			return nil, invalid("adopting communicator %q: this rank is rank %d of %d in the "+
				"communicator, but rank %d of %d in group %s", name, native.Rank(), native.Size(),
				g.rank, len(g.ranks), g.id)
		}
	}

	a := &AdoptedCommunicator{
		rt: rt, group: g, name: name, native: native, windows: map[*segment]driver.Window{},
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.adopted = append(slices.Clone(rt.adopted), a)
	return a, nil
}

// Name returns the name that was passed to AdoptCommunicator.
func (a *AdoptedCommunicator) Name() string { return a.name }

// Windows returns the number of registered segments.
func (a *AdoptedCommunicator) Windows() int {
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	return len(a.windows)
}

// Register registers a pool's new segments with the communicator and its group. If there are any,
// all ranks must call it, and return the same DivergenceError or, during a capture, ErrCapturing.
// After a TimeoutError, the communicator is unusable.
func (a *AdoptedCommunicator) Register(ctx context.Context, p *Pool) error {
	ctx = orBackground(ctx)
	use, err := enterPools(p, nil)
	if err != nil {
		return fmt.Errorf("registering with communicator %q: %w", a.name, err)
	}
	defer use.leave(p, nil)
	if a.group != nil {
		if err := p.registrar.registerInCall(ctx, a.group); err != nil {
			return err
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed != nil {
		return a.failed
	}

	pending := a.holdPending(p)
	defer p.segments.releaseAll(pending)
	if len(pending) == 0 {
		return nil
	}

	exchange := a.native.Exchange
	if g := a.group; g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		exchange = g.comparison.exchangeOn(driver.LaneControl)
	}

	if err := a.agree(ctx, p, pending); err != nil {
		return err
	}

	err = a.rt.captures.runWithoutCapture(ctx, exchange, func() error {
		return a.registerAll(ctx, p, pending)
	})
	if err != nil && a.failed == nil {
		return fmt.Errorf("registering with communicator %q: %w", a.name, err)
	}

	return err
}

// registerAll registers segments. After an error, the communicator is unusable. The caller must
// hold a.mu.
func (a *AdoptedCommunicator) registerAll(
	ctx context.Context, p *Pool, pending []*segment,
) error {
	for _, s := range pending {
		if err := a.registerOne(ctx, p, s); err != nil {
			a.failed = fmt.Errorf("registering segment %d with communicator %q: %w",
				s.ordinal, a.name, err)
			return a.failed
		}
	}

	return nil
}

// holdPending returns the mapped segments that are not registered with the communicator yet. They
// stay mapped until releaseAll. With a group, it omits segments that are not registered with the
// group: they may not exist on all ranks.
func (a *AdoptedCommunicator) holdPending(p *Pool) []*segment {
	const firstOrdinal = 0 // all segments
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments.holdSegments(firstOrdinal, func(s *segment) bool {
		if a.windows[s] != nil {
			return false
		}

		return a.group == nil || a.group.windows.contains(uintptr(s.start), 0)
	})
}

// agree compares the pool's history and the pending segments across ranks. With a group, the caller
// must hold the group's lock.
func (a *AdoptedCommunicator) agree(ctx context.Context, p *Pool, pending []*segment) error {
	tag := "communicator " + a.name
	tag = tag[:min(len(tag), agreement.MaxTag)]
	if g := a.group; g != nil {
		if a.rt.Check() == CheckOff {
			return nil
		}

		return g.comparison.agree(ctx, tag, p.history.with(pending))
	}

	config := agreement.Config{
		Rank: a.native.Rank(), Ranks: a.native.Size(), Mode: agreement.ModeExact, Group: a.name,
		Tag: "communicator",
	}
	if a.rt.Check() != CheckOff {
		config.Ledgers = []agreement.Ledger{p.history.with(pending)}
	}

	if p.suspicion.isSuspect() {
		config.Flags = realignFlag
	}

	machine, err := agreement.New(config)
	if err != nil {
		return err
	}

	outcome, err := agreement.Run(ctx, a.native.Exchange, machine)
	if err == nil {
		err = a.outcomeError(outcome)
	}

	if err != nil {
		return fmt.Errorf("comparing before a registration with communicator %q: %w", a.name, err)
	}

	return nil
}

// outcomeError returns an error if the ranks differ, or if some rank has asked for a realignment,
// which is a call of a group.
func (a *AdoptedCommunicator) outcomeError(outcome *agreement.Outcome) error {
	if outcome.Flags != 0 {
		return invalid("a pool must be realigned after a fault: call Group.Check on all ranks of " +
			"its domain first")
	}

	return divergenceOf(outcome, a.name, nil)
}

// registerOne registers a segment. If a concurrent Trim unmaps the segment, it deregisters the
// segment again, which is no error.
func (a *AdoptedCommunicator) registerOne(ctx context.Context, p *Pool, s *segment) error {
	w, err := a.native.Register(ctx, s.memory)
	if err != nil {
		return err
	}

	a.windowsMu.Lock()
	a.windows[s] = w
	a.windowsMu.Unlock()
	p.mu.Lock()
	isWithdrawn := s.withdrawn
	p.mu.Unlock()
	if isWithdrawn { // Trim may have missed this window
		deregisterErr := a.deregister(s)
		p.segments.reportLater(deregisterErr)
	}

	return nil
}

// deregister deregisters a segment. It does nothing if the segment is not registered.
func (a *AdoptedCommunicator) deregister(s *segment) error {
	// Held during Deregister, so that Detach waits: its caller may then destroy the communicator.
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	w := a.windows[s]
	if w == nil {
		return nil
	}

	delete(a.windows, s)
	err := w.Deregister()
	return panicIfClosedTwice(err)
}

// Detach deregisters this rank's windows and ends the use of the communicator, without waiting for
// other ranks. After Detach or Forget, it does nothing.
func (a *AdoptedCommunicator) Detach() error {
	unlock := a.end()
	defer unlock()
	var errs []error
	for _, w := range a.sortedWindows() {
		err := w.Deregister()
		errs = append(errs, panicIfClosedTwice(err))
	}

	clear(a.windows)
	return errors.Join(errs...)
}

// Forget ends the use of a communicator that its owner destroys, without deregistering windows.
// After Detach or Forget, it does nothing.
func (a *AdoptedCommunicator) Forget() {
	unlock := a.end()
	defer unlock()
	clear(a.windows)
}

// end makes registrations fail, and locks the windows until unlock is called.
func (a *AdoptedCommunicator) end() (unlock func()) {
	a.rt.mu.Lock()
	adopted := slices.Clone(a.rt.adopted)
	a.rt.adopted = slices.DeleteFunc(adopted, func(other *AdoptedCommunicator) bool {
		return other == a
	})
	a.rt.mu.Unlock()
	a.mu.Lock()
	if a.failed == nil {
		a.failed = fmt.Errorf("communicator %q: %w", a.name, ErrClosed)
	}

	a.windowsMu.Lock()
	return func() {
		a.windowsMu.Unlock()
		a.mu.Unlock()
	}
}

// sortedWindows returns the windows in the order of registration. NCCL must deregister them in this
// order. The caller must hold a.windowsMu.
func (a *AdoptedCommunicator) sortedWindows() []driver.Window {
	var segments []*segment
	for s := range a.windows {
		segments = append(segments, s)
	}

	slices.SortFunc(segments, compareOrdinals)
	var windows []driver.Window
	for _, s := range segments {
		windows = append(windows, a.windows[s])
	}

	return windows
}

// deregisterAdopted deregisters a segment from all adopted communicators.
func deregisterAdopted(rt *Runtime, s *segment) error {
	rt.mu.Lock()
	all := rt.adopted // replaced, never modified
	rt.mu.Unlock()
	var errs []error
	for _, a := range all {
		errs = append(errs, a.deregister(s))
	}

	return errors.Join(errs...)
}
