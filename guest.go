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

// Guest is a communicator of another library in which pools of this rank are registered too, so
// that its unchanged calls find their buffers in windows.
//
// It takes part in a group, whose ranks are its own in the same order: then what is registered is
// what the group has as windows, once its ranks have agreed. Or it is alone: then its ranks compare
// the histories of the pool through the communicator itself.
//
// States: open; failed, after the first error of a registration, which every further one returns;
// detached. The owner makes no calls on the communicator while one of Register is under way, and
// ends the Guest before the communicator. It is safe for concurrent use.
type Guest struct {
	rt     *Runtime
	group  *Group // nil if it is alone
	name   string
	native driver.Guest

	mu        ranked.Mutex[guestMu]      // held during registration
	failed    error                      // guarded by mu
	windowsMu ranked.Mutex[guestWindows] // guards windows; taken last
	windows   map[*segment]driver.Window // guarded by windowsMu
}

// AdoptCommunicator makes a Guest of a communicator, by its handle: an ncclComm_t, of the copy of
// NCCL that symmem uses. The name stands for it in errors and is compared: the same on all ranks.
// With a group the ranks must be the group's, in the same order. It is local.
//
// Errors: ErrUnsupported on the host and with Options.Deterministic, ErrInvalid where ranks do not
// fit.
func (i Interop) AdoptCommunicator(handle uintptr, name string, g *Group) (*Guest, error) {
	rt := i.rt
	if err := rt.usable(); err != nil {
		return nil, err
	}
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
	guest := &Guest{
		rt: rt, group: g, name: name, native: native, windows: map[*segment]driver.Window{},
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.guests = append(slices.Clone(rt.guests), guest)
	return guest, nil
}

// Name is the name that AdoptCommunicator was given.
func (gu *Guest) Name() string { return gu.name }

// Windows is the number of segments that are registered.
func (gu *Guest) Windows() int {
	gu.windowsMu.Lock()
	defer gu.windowsMu.Unlock()
	return len(gu.windows)
}

// Register registers what is new in a pool, in the order of the segments: collective if something
// is. In a group it registers with the group first.
//
// Errors: DivergenceError on every rank, with nothing registered; TimeoutError, where a rank does
// not come: the communicator is of no use any more then; ErrCapturing before anything happens.
func (gu *Guest) Register(ctx context.Context, p *Pool) error {
	if gu.group != nil {
		if err := p.Register(ctx, gu.group); err != nil {
			return err
		}
	}
	gu.mu.Lock()
	defer gu.mu.Unlock()
	if gu.failed != nil {
		return gu.failed
	}
	pending, err := gu.pending(p)
	if err != nil || len(pending) == 0 {
		return err
	}
	if gu.rt.capturing(nil) {
		return fmt.Errorf("registering with communicator %q: %w", gu.name, ErrCapturing)
	}
	if err := gu.agree(ctx, p, pending); err != nil {
		return err
	}
	for _, s := range pending {
		if err := gu.registerOne(ctx, s); err != nil {
			gu.failed = fmt.Errorf("registering segment %d with communicator %q: %w",
				s.key.Ordinal, gu.name, err)
			return gu.failed
		}
	}
	return nil
}

// pending lists what the guest has not got: segments that are windows of its group, so that all
// ranks list the same, or, alone, all that are mapped.
func (gu *Guest) pending(p *Pool) ([]*segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("pool: %w", ErrClosed)
	}
	gu.windowsMu.Lock()
	defer gu.windowsMu.Unlock()
	var pending []*segment
	for _, s := range p.segments {
		if s == nil || gu.windows[s] != nil {
			continue
		}
		if gu.group != nil {
			if _, ok := gu.group.table.Load().find(uintptr(s.start), 0); !ok {
				continue
			}
		}
		pending = append(pending, s)
	}
	return pending, nil
}

// agree makes sure that all ranks are about to register the same.
func (gu *Guest) agree(ctx context.Context, p *Pool, pending []*segment) error {
	if gu.rt.Check() == CheckOff {
		return nil
	}
	var list agreement.Pending
	for _, s := range pending {
		list = list.Add(s.key.Ordinal, s.key.Bytes)
	}
	tag := "communicator " + gu.name
	tag = tag[:min(len(tag), agreement.MaxTag)]
	if g := gu.group; g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.agree(ctx, tag, p.history(list))
	}
	machine, err := agreement.New(agreement.Config{
		Rank: gu.native.Rank(), Ranks: gu.native.Size(), Mode: agreement.Exact, Group: gu.name,
		Tag: "communicator", Ledgers: []agreement.Ledger{p.history(list)},
	})
	if err != nil {
		return err
	}
	outcome, err := agreement.Run(ctx, gu.native.Exchange, machine)
	if err == nil {
		err = divergenceOf(outcome, gu.name, nil)
	}
	if err != nil {
		return fmt.Errorf("comparing before a registration with communicator %q: %w", gu.name, err)
	}
	return nil
}

func (gu *Guest) registerOne(ctx context.Context, s *segment) error {
	w, err := gu.native.Register(ctx, s.memory)
	if err != nil {
		return err
	}
	gu.windowsMu.Lock()
	defer gu.windowsMu.Unlock()
	gu.windows[s] = w
	return nil
}

// Detach ends the Guest while the communicator is alive: its windows are deregistered on this rank.
// It waits for no other rank. A second Detach or Forget does nothing.
func (gu *Guest) Detach() error {
	defer gu.end()()
	var errs []error
	for _, w := range gu.inOrder() {
		errs = append(errs, closedOnce(w.Deregister()))
	}
	clear(gu.windows)
	return errors.Join(errs...)
}

// Forget ends the Guest of a communicator that has ended, or is about to, and whose windows end
// with it. A second Forget or Detach does nothing.
func (gu *Guest) Forget() {
	defer gu.end()()
	clear(gu.windows)
}

// end lets nothing be registered any more, and takes the locks of the windows. What it returns
// gives them back.
func (gu *Guest) end() (unlock func()) {
	gu.rt.mu.Lock()
	gu.rt.guests = slices.DeleteFunc(slices.Clone(gu.rt.guests), func(other *Guest) bool {
		return other == gu
	})
	gu.rt.mu.Unlock()
	gu.mu.Lock()
	if gu.failed == nil {
		gu.failed = fmt.Errorf("communicator %q: %w", gu.name, ErrClosed)
	}
	gu.windowsMu.Lock()
	return func() {
		gu.windowsMu.Unlock()
		gu.mu.Unlock()
	}
}

// inOrder lists the windows in the order of their addresses' registration, as NCCL wants them taken
// back. gu.windowsMu is held.
func (gu *Guest) inOrder() []driver.Window {
	var segments []*segment
	for s := range gu.windows {
		segments = append(segments, s)
	}
	slices.SortFunc(segments, func(a, b *segment) int {
		return int(a.key.Ordinal) - int(b.key.Ordinal)
	})
	var windows []driver.Window
	for _, s := range segments {
		windows = append(windows, gu.windows[s])
	}
	return windows
}

// deregisterGuests takes a segment that is about to be trimmed from all guests.
func deregisterGuests(rt *Runtime, s *segment) error {
	rt.mu.Lock()
	guests := rt.guests
	rt.mu.Unlock()
	var errs []error
	for _, gu := range guests {
		gu.windowsMu.Lock()
		if w := gu.windows[s]; w != nil {
			delete(gu.windows, s)
			errs = append(errs, closedOnce(w.Deregister()))
		}
		gu.windowsMu.Unlock()
	}
	return errors.Join(errs...)
}
