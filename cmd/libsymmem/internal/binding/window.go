package binding

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"symmem"
)

// attachment is a communicator of another library that takes part in a group.
type attachment struct {
	handle  uint64
	comm    uintptr
	adopted *symmem.AdoptedCommunicator
	group   *group
}

// ScopeEnd registers with a group, and with the communicators attached to it, what is new in all
// pools whose domain holds it. seen is the value of Words.Pending up to which it has everything.
func (l *Library) ScopeEnd(handle uint64, stream uintptr) (seen int64, err error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	seen = l.words.Pending.Load()
	for _, p := range r.all() {
		if !g.holds(p) {
			continue
		}
		if err := r.register(g, p, stream); err != nil {
			return 0, err
		}
	}
	return seen, nil
}

// RegisterPending is ScopeEnd for one pool.
func (l *Library) RegisterPending(handle uint64, number int, stream uintptr) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	p, err := r.pool(number)
	if err != nil {
		return err
	}
	return r.register(g, p, stream)
}

// register registers what is new of a pool with a group and its communicators.
func (r *rank) register(g *group, p *pool, stream uintptr) error {
	if err := g.Cause(context.Background()); err != nil {
		return err
	}
	if err := p.flush(); err != nil {
		return err
	}
	if r.rt.Interop().Captured(stream) {
		if !r.rt.Interop().Pending(p.Pool, g.Group) {
			return nil
		}
		return fmt.Errorf("registering with group %s: %w", g.ID(), symmem.ErrCapturing)
	}
	return r.library.apart("registering", func(ctx context.Context) error {
		if err := p.Register(ctx, g.Group); err != nil {
			return err
		}
		for _, a := range r.attached(g) {
			if err := a.adopted.Register(ctx, p.Pool); err != nil {
				return err
			}
		}
		return nil
	})
}

// attached lists the communicators of a group, in the order in which they came.
func (r *rank) attached(g *group) []*attachment {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(g.attachments)
}

// Attach makes a communicator of another library take part in a group, and registers what the
// group has with it: collective over the group.
func (l *Library) Attach(handle uint64, comm uintptr, name string) (uint64, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	for _, a := range r.attached(g) {
		if a.comm == comm && a.adopted.Name() == name {
			return a.handle, nil
		}
	}
	adopted, err := r.rt.Interop().AdoptCommunicator(comm, name, g.Group)
	if err != nil {
		return 0, err
	}
	for _, p := range r.all() {
		if !g.holds(p) {
			continue
		}
		err := p.flush()
		if err == nil {
			err = l.apart("attaching", func(ctx context.Context) error {
				return adopted.Register(ctx, p.Pool)
			})
		}
		if err != nil {
			adopted.Forget()
			return 0, err
		}
	}
	a := &attachment{handle: l.handles.Add(1), comm: comm, adopted: adopted, group: g}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attachments[a.handle] = a
	g.attachments = append(g.attachments, a)
	return a.handle, nil
}

// Detach ends the part of a communicator, which is alive still or not.
func (l *Library) Detach(handle uint64, alive bool) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	r.mu.Lock()
	a := r.attachments[handle]
	if a != nil {
		delete(r.attachments, handle)
		a.group.attachments = slices.DeleteFunc(slices.Clone(a.group.attachments),
			func(other *attachment) bool { return other == a })
	}
	r.mu.Unlock()
	if a == nil {
		return fmt.Errorf("attachment %d: %w", handle, symmem.ErrClosed)
	}
	if alive {
		return a.adopted.Detach()
	}
	a.adopted.Forget()
	return nil
}

// IsSymmetric reports whether a range lies in one window of a group. What is closed has no windows.
func (l *Library) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := l.find(handle)
	return err == nil && bytes <= maxBytes &&
		r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// Window is a range of addresses.
type Window struct{ Address, Bytes int64 }

// Windows lists the windows of a group by address.
func (l *Library) Windows(handle uint64) ([]Window, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return nil, err
	}
	var all []Window
	for _, p := range r.all() {
		for s := range p.Segments() {
			if r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes) {
				all = append(all, Window{int64(s.Address), s.Bytes})
			}
		}
	}
	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}
