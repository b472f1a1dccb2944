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
	native driver.AdoptedCommunicator

	mu        ranked.Mutex[adoptedMu]        // held during registration
	failed    error                          // guarded by mu
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
	if err := rt.creation.beginCall(); err != nil {
		return nil, err
	}
	defer rt.creation.endCall()
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
	if g != nil && (native.Size() != len(g.ranks) || native.Rank() != g.rank) {
		return nil, invalid("adopting communicator %q: this rank is rank %d of %d in the communicator, "+
			"but rank %d of %d in group %s", name, native.Rank(), native.Size(), g.rank,
			len(g.ranks), g.id)
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
	pending := a.pending(p)
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

// pending lists mapped segments that are not registered with the communicator, except for those
// that the group lacks, in which ranks may differ.
func (a *AdoptedCommunicator) pending(p *Pool) []*segment {
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.segments.holdSegments(0, func(s *segment) bool {
		return a.windows[s] == nil &&
			(a.group == nil || a.group.windows.contains(uintptr(s.start), 0))
	})
}

// agree requires that the caller holds the group's lock.
func (a *AdoptedCommunicator) agree(ctx context.Context, p *Pool, pending []*segment) error {
	tag := "communicator " + a.name
	tag = tag[:min(len(tag), agreement.MaxTag)]
	if g := a.group; g != nil {
		if a.rt.Check() == CheckOff {
			return nil
		}
		return g.comparison.agree(ctx, tag, p.history.with(pending))
	}
	c := agreement.Config{
		Rank: a.native.Rank(), Ranks: a.native.Size(), Mode: agreement.ModeExact, Group: a.name,
		Tag: "communicator",
	}
	if a.rt.Check() != CheckOff {
		c.Ledgers = []agreement.Ledger{p.history.with(pending)}
	}
	if p.suspicion.isSuspectForAny() {
		c.Flags = realignFlag
	}
	machine, err := agreement.New(c)
	if err != nil {
		return err
	}
	outcome, err := agreement.Run(ctx, a.native.Exchange, machine)
	switch {
	case err != nil:
	case outcome.Flags != 0:
		err = invalid("a pool must be realigned after a fault: call Group.Check on all ranks of its " +
			"domain first")
	default:
		err = divergenceOf(outcome, a.name, nil)
	}
	if err != nil {
		return fmt.Errorf("comparing before a registration with communicator %q: %w", a.name, err)
	}
	return nil
}

func (a *AdoptedCommunicator) registerOne(ctx context.Context, p *Pool, s *segment) error {
	w, err := a.native.Register(ctx, s.memory)
	if err != nil {
		return err
	}
	a.windowsMu.Lock()
	a.windows[s] = w
	a.windowsMu.Unlock()
	p.mu.Lock()
	isReleasing := s.releasing
	p.mu.Unlock()
	if isReleasing { // a concurrent Trim may have missed this window
		p.segments.reportLater(a.deregister(s))
	}
	return nil
}

// deregister does nothing if the segment is not registered.
func (a *AdoptedCommunicator) deregister(s *segment) error {
	// Held during Deregister, so that Detach waits: its caller may then destroy the communicator.
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	w := a.windows[s]
	if w == nil {
		return nil
	}
	delete(a.windows, s)
	return panicIfClosedTwice(w.Deregister())
}

// Detach deregisters this rank's windows and ends the use of the communicator, without waiting for
// other ranks. After Detach or Forget, it does nothing.
func (a *AdoptedCommunicator) Detach() error {
	defer a.end()()
	var errs []error
	for _, w := range a.sortedWindows() {
		errs = append(errs, panicIfClosedTwice(w.Deregister()))
	}
	clear(a.windows)
	return errors.Join(errs...)
}

// Forget ends the use of a communicator that its owner destroys, without deregistering windows.
// After Detach or Forget, it does nothing.
func (a *AdoptedCommunicator) Forget() {
	defer a.end()()
	clear(a.windows)
}

// end makes registrations fail, and locks the windows until unlock is called.
func (a *AdoptedCommunicator) end() (unlock func()) {
	a.rt.mu.Lock()
	adopted := slices.Clone(a.rt.adopted)
	a.rt.adopted = slices.DeleteFunc(adopted, func(o *AdoptedCommunicator) bool {
		return o == a
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

// sortedWindows is in the order of registration, in which NCCL must deregister windows. The caller
// must hold a.windowsMu.
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

func deregisterAdopted(rt *Runtime, s *segment) error {
	rt.mu.Lock()
	all := rt.adopted
	rt.mu.Unlock()
	var errs []error
	for _, a := range all {
		errs = append(errs, a.deregister(s))
	}
	return errors.Join(errs...)
}
