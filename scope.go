package symmem

import (
	"context"
	"fmt"

	"symmem/event"
)

// Scope represents a section of code whose allocations come from a pool. The end of the section
// registers the pool's new segments with a group. Scopes may be nested.
//
//	s := pool.Begin(group)
//	defer s.Abandon()
//	b, err := s.Alloc(bytes)
//	...
//	return s.End(ctx)
//
// A scope that is abandoned, for example by a panic or an early return, registers nothing, because
// the other ranks may not have reached its end. Its buffers remain allocated, and their memory is
// registered at the end of a later scope.
//
// A Scope is open until End or Abandon. It must not be copied and is not safe for concurrent use.
type Scope struct {
	pool       *Pool
	group      *Group
	membership *membership
	err        error
	hasEnded   bool
}

// Begin opens a scope for a group. If the group cannot register the pool's memory, Alloc and End
// return the reason. Begin is inlined, so that the Scope needs no heap allocation.
func (p *Pool) Begin(g *Group) *Scope {
	s := &Scope{pool: p, group: g}
	s.membership, s.err = beginGroupScope(p, g)
	return s
}

func beginGroupScope(p *Pool, g *Group) (*membership, error) {
	if p.rt.recording.active() {
		p.events.recordScope(event.KindScopeBegin, g)
	}
	if g != nil && g.rt == p.rt {
		if m := g.windows.membershipOf(p); m != nil {
			return m, nil
		}
	}
	return p.registrar.findMembership(g)
}

// BeginDisabled opens a scope whose buffers come from a pool without a domain and are never
// registered. Use it if only some calls need symmetric memory.
func (p *Pool) BeginDisabled() *Scope {
	p.rt.local.events.recordScope(event.KindScopeBegin, nil)
	return &Scope{pool: p.rt.local}
}

// Enabled reports whether the scope's allocations are symmetric.
func (s *Scope) Enabled() bool { return s.group != nil }

// Alloc returns a buffer for use on the default stream. See Pool.Alloc.
func (s *Scope) Alloc(bytes int64) (Buffer, error) {
	if err := s.checkUsable(); err != nil {
		return Buffer{}, err
	}
	return s.pool.Alloc(bytes)
}

// AllocOn returns a buffer for use on a stream. See Pool.AllocOn.
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

// End ends the scope and registers new segments. If there are new segments, End is collective over
// the group. If there are none, End takes a few nanoseconds and does not communicate. See
// Pool.Register for the errors. If the scope has already ended, End returns ErrClosed.
func (s *Scope) End(ctx context.Context) error {
	ctx = orBackground(ctx)
	if err := s.checkUsable(); err != nil {
		return err
	}
	s.hasEnded = true
	if s.pool.rt.recording.active() {
		s.pool.events.recordScope(event.KindScopeEnd, s.group)
	}
	if s.membership == nil || !s.membership.hasPending.Load() {
		return nil
	}
	return s.pool.registerPending(ctx, s.membership)
}

// Abandon ends the scope without registering anything. After End it does nothing, so it can be
// deferred.
func (s *Scope) Abandon() {
	if !s.hasEnded {
		s.abandon()
	}
}

func (s *Scope) abandon() {
	s.hasEnded = true
	if s.pool != nil {
		s.pool.events.recordScope(event.KindScopeAbandon, s.group)
	}
}

// With runs a function in a scope of the group. If the function returns nil, With ends the scope
// and registers new segments; if the function returns an error or panics, With abandons the scope.
func (p *Pool) With(ctx context.Context, g *Group, f func(*Scope) error) error {
	ctx = orBackground(ctx)
	if f == nil {
		return invalid("running a nil function in a scope")
	}
	s := p.Begin(g)
	defer s.Abandon()
	if err := s.checkUsable(); err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	return s.End(ctx)
}
