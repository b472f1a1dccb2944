package symmem

import (
	"context"
	"fmt"

	"symmem/event"
)

// Scope is a section of code that allocates buffers from a pool. End registers the pool's memory
// with a group, so that all ranks of the group can access the buffers.
//
//	s := pool.Begin(group)
//	defer s.Abandon()
//	b, err := s.Alloc(bytes)
//	...
//	return s.End(ctx)
//
// If the code panics or returns before End, Abandon ends the scope. It does not register memory,
// because that would wait for the other ranks. Scopes can be nested. A Scope must not be copied and
// is not safe for concurrent use.
type Scope struct {
	pool       *Pool
	group      *Group      // nil after BeginDisabled
	membership *membership // the group's registrations of the pool
	err        error       // set if the group cannot register the pool's memory
	hasEnded   bool
}

// Begin opens a scope for a group. If the group cannot register the pool's memory, Alloc and End
// return an error.
func (p *Pool) Begin(g *Group) *Scope {
	// Begin is small enough to be inlined, so that the Scope need not escape to the heap.
	s := &Scope{pool: p, group: g}
	s.membership, s.err = beginGroupScope(p, g)
	return s
}

func beginGroupScope(p *Pool, g *Group) (*membership, error) {
	if p.rt.recording.isActive() {
		p.events.recordScope(event.KindScopeBegin, g)
	}

	hasSameRuntime := g != nil && g.rt == p.rt
	if hasSameRuntime {
		if m := g.windows.membershipOf(p); m != nil { // fast, without a lock
			return m, nil
		}
	}

	return p.registrar.ensureMembership(g)
}

// BeginDisabled opens a scope without a group. The scope uses not p but the Runtime's local pool,
// whose memory is never registered.
func (p *Pool) BeginDisabled() *Scope {
	p.rt.local.events.recordScope(event.KindScopeBegin, nil)
	return &Scope{pool: p.rt.local}
}

// Enabled reports whether the scope registers its memory with a group.
func (s *Scope) Enabled() bool { return s.group != nil }

// Alloc calls Pool.Alloc. After the end of the scope, it returns ErrClosed.
func (s *Scope) Alloc(bytes int64) (Buffer, error) {
	if err := s.checkUsable(); err != nil {
		return Buffer{}, err
	}

	return s.pool.Alloc(bytes)
}

// AllocOn calls Pool.AllocOn. After the end of the scope, it returns ErrClosed.
func (s *Scope) AllocOn(stream *Stream, bytes int64) (Buffer, error) {
	if err := s.checkUsable(); err != nil {
		return Buffer{}, err
	}

	return s.pool.AllocOn(stream, bytes)
}

func (s *Scope) checkUsable() error {
	if s.hasEnded {
		return fmt.Errorf("scope: %w", ErrClosed)
	}

	if s.pool == nil {
		return invalid("a zero Scope is not usable: call Pool.Begin")
	}

	return s.err
}

// End ends the scope and registers all memory of the pool that the group has not registered yet. If
// there is such memory, all ranks of the group must call End. Otherwise, End does not communicate.
// Pool.Register describes the errors.
func (s *Scope) End(ctx context.Context) error {
	ctx = orBackground(ctx)
	if err := s.checkUsable(); err != nil {
		return err
	}

	s.hasEnded = true
	if s.pool.rt.recording.isActive() {
		s.pool.events.recordScope(event.KindScopeEnd, s.group)
	}

	mustRegister := s.membership != nil && s.membership.hasPending.Load()
	if !mustRegister {
		return nil
	}

	return s.pool.registerPending(ctx, s.membership)
}

// Abandon ends the scope without registering memory. After End, it does nothing.
func (s *Scope) Abandon() {
	if !s.hasEnded {
		s.abandonOpen()
	}
}

// abandonOpen is separate so that Abandon can be inlined.
func (s *Scope) abandonOpen() {
	s.hasEnded = true
	if s.pool != nil {
		s.pool.events.recordScope(event.KindScopeAbandon, s.group)
	}
}

// With opens a scope and calls run. It then calls Scope.End or, if run returns an error or panics,
// Scope.Abandon.
func (p *Pool) With(ctx context.Context, g *Group, run func(*Scope) error) error {
	ctx = orBackground(ctx)
	if run == nil {
		return invalid("running a nil function in a scope")
	}

	s := p.Begin(g)
	defer s.Abandon() // does nothing after End
	if err := s.checkUsable(); err != nil {
		return err
	}

	if err := run(s); err != nil {
		return err
	}

	return s.End(ctx)
}
