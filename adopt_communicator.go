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

// AdoptedCommunicator is a communicator of another library with which pools of this rank are
// registered as well, so that the library's unchanged calls find their buffers in windows.
//
// It either takes part in a group with the same ranks in the same order: then the group's windows
// are registered with it, once the ranks have agreed. Or it is alone: then its ranks compare the
// histories of the pool through the communicator itself.
//
// States: open; failed, after the first error of a registration, which every later one returns;
// detached. The owner makes no calls on the communicator during a call of Register, and calls
// Detach before it destroys it, or Forget. It is safe for concurrent use.
type AdoptedCommunicator struct {
	rt     *Runtime
	group  *Group // nil if it is alone
	name   string
	native driver.AdoptedCommunicator

	mu        ranked.Mutex[adoptedMu]        // held during registration
	failed    error                          // guarded by mu
	windowsMu ranked.Mutex[adoptedWindowsMu] // guards windows; taken last
	windows   map[*segment]driver.Window     // guarded by windowsMu
}

// AdoptCommunicator adopts a communicator, by its handle: an ncclComm_t, of the copy of NCCL that
// symmem uses. The name stands for it in errors and is compared: the same on all ranks. With a
// group the ranks must be the group's, in the same order. It is local.
//
// Errors: ErrUnsupported on the host and with Options.Deterministic, ErrInvalid where ranks do not
// fit.
func (i Interop) AdoptCommunicator(
	handle uintptr, name string, g *Group,
) (*AdoptedCommunicator, error) {
	rt := i.rt
	if err := rt.making.begin(); err != nil {
		return nil, err
	}
	defer rt.making.done()
	if err := rt.opts.notDeterministic(fmt.Sprintf("adopting communicator %q", name)); err != nil {
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
		return nil, invalid("adopting communicator %q: this is its rank %d of %d, but rank %d of %d "+
			"in group %s", name, native.Rank(), native.Size(), g.rank, len(g.ranks), g.id)
	}
	a := &AdoptedCommunicator{
		rt: rt, group: g, name: name, native: native, windows: map[*segment]driver.Window{},
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.adopted = append(slices.Clone(rt.adopted), a)
	return a, nil
}

// Name is the name that AdoptCommunicator was given.
func (a *AdoptedCommunicator) Name() string { return a.name }

// Windows is the number of segments that are registered.
func (a *AdoptedCommunicator) Windows() int {
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	return len(a.windows)
}

// Register registers what is new in a pool, in the order of the segments: collective if something
// is. In a group it registers with the group first.
//
// Errors: DivergenceError on every rank, with nothing registered; TimeoutError, where a rank does
// not come: the communicator is of no use any more then; ErrCapturing, on every rank, where a
// stream of one of them captures.
func (a *AdoptedCommunicator) Register(ctx context.Context, p *Pool) error {
	ctx = orBackground(ctx)
	in, err := enter(p, nil)
	if err != nil {
		return fmt.Errorf("registering with communicator %q: %w", a.name, err)
	}
	defer in.leave(p, nil)
	if a.group != nil {
		if err := p.Register(ctx, a.group); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed != nil {
		return a.failed
	}
	pending := a.pending(p)
	defer p.registered(pending)
	if len(pending) == 0 {
		return nil
	}
	exchange := a.native.Exchange
	if g := a.group; g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		exchange = g.comparison.lane(driver.LaneControl)
	}
	if err := a.agree(ctx, p, pending); err != nil {
		return err
	}
	err = a.rt.captures.exclude(ctx, exchange, func() error {
		return a.registerAll(ctx, p, pending)
	})
	if err != nil && a.failed == nil {
		return fmt.Errorf("registering with communicator %q: %w", a.name, err)
	}
	return err
}

// registerAll registers segments. a.mu is held.
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

// pending lists what the communicator has not got: segments that are windows of its group, so that
// all ranks list the same, or, alone, all that are mapped.
func (a *AdoptedCommunicator) pending(p *Pool) []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	var pending []*segment
	for _, s := range p.segments {
		if !s.registrable() || a.windows[s] != nil {
			continue
		}
		if a.group != nil {
			if _, ok := a.group.windows.table.Load().find(uintptr(s.start), 0); !ok {
				continue
			}
		}
		s.holds++
		pending = append(pending, s)
	}
	return pending
}

// agree makes sure that all ranks are about to register the same. The group's lock is held.
func (a *AdoptedCommunicator) agree(ctx context.Context, p *Pool, pending []*segment) error {
	tag := "communicator " + a.name
	tag = tag[:min(len(tag), agreement.MaxTag)]
	if g := a.group; g != nil {
		if a.rt.Check() == CheckOff {
			return nil
		}
		return g.comparison.agree(ctx, tag, p.history(pending))
	}
	c := agreement.Config{
		Rank: a.native.Rank(), Ranks: a.native.Size(), Mode: agreement.Exact, Group: a.name,
		Tag: "communicator",
	}
	if a.rt.Check() != CheckOff {
		c.Ledgers = []agreement.Ledger{p.history(pending)}
	}
	if (suspectPool{p}).suspectAnywhere() {
		c.Flags = flagAlign
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
	p.mu.Lock()
	defer p.mu.Unlock()
	a.windowsMu.Lock()
	defer a.windowsMu.Unlock()
	if s.releasing { // Trim has looked at the windows before, or is about to
		return w.Deregister()
	}
	a.windows[s] = w
	return nil
}

// Detach gives a communicator that is alive back: its windows are deregistered on this rank. It
// waits for no other rank. A second Detach or Forget does nothing.
func (a *AdoptedCommunicator) Detach() error {
	defer a.end()()
	var errs []error
	for _, w := range a.inOrder() {
		errs = append(errs, closedOnce(w.Deregister()))
	}
	clear(a.windows)
	return errors.Join(errs...)
}

// Forget gives a communicator up that has ended, or is about to, and whose windows end with it. A
// second Forget or Detach does nothing.
func (a *AdoptedCommunicator) Forget() {
	defer a.end()()
	clear(a.windows)
}

// end lets nothing be registered any more, and takes the locks of the windows. What it returns
// gives them back.
func (a *AdoptedCommunicator) end() (unlock func()) {
	a.rt.mu.Lock()
	left := slices.Clone(a.rt.adopted)
	a.rt.adopted = slices.DeleteFunc(left, func(o *AdoptedCommunicator) bool { return o == a })
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

// inOrder lists the windows in the order of their addresses' registration, as NCCL wants them taken
// back. a.windowsMu is held.
func (a *AdoptedCommunicator) inOrder() []driver.Window {
	var segments []*segment
	for s := range a.windows {
		segments = append(segments, s)
	}
	slices.SortFunc(segments, byOrdinal)
	var windows []driver.Window
	for _, s := range segments {
		windows = append(windows, a.windows[s])
	}
	return windows
}

// deregisterAdopted takes a segment that is about to be trimmed from all adopted communicators.
func deregisterAdopted(rt *Runtime, s *segment) error {
	rt.mu.Lock()
	all := rt.adopted
	rt.mu.Unlock()
	var errs []error
	for _, a := range all {
		a.windowsMu.Lock()
		if w := a.windows[s]; w != nil {
			delete(a.windows, s)
			errs = append(errs, closedOnce(w.Deregister()))
		}
		a.windowsMu.Unlock()
	}
	return errors.Join(errs...)
}
