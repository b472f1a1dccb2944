package symmem

import (
	"context"
	"fmt"

	"symmem/event"
)

// A pool maps its memory in parts, the segments. Before the ranks of a group can access each
// other's buffers, they must register the segments together. Suppose that a program allocates three
// buffers in a scope, and that one of them makes the pool map a segment. At the end of the scope,
// the ranks register this segment.

// Scope is a section of code that allocates memory from a pool. End registers the pool's new
// segments with a group.
//
//	s := pool.Begin(group)
//	defer s.Abandon()
//	b, err := s.Alloc(bytes)
//	...
//	return s.End(ctx)
//
// If the code panics or returns before End, Abandon ends the scope and registers nothing, because
// other ranks may not do the same. Scopes can be nested. A Scope must not be copied and is not safe
// for concurrent use.
type Scope struct {
	pool  *Pool  // nil in a zero Scope
	group *Group // nil in a disabled scope
	// membership knows which segments the group has registered. It is nil in a disabled scope, or if
	// err is set.
	membership *membership
	err        error // why the group cannot register the pool's memory, or nil
	hasEnded   bool
}

// Begin opens a scope for a group. If the group cannot register the pool's memory, Alloc and End
// return an error.
func (p *Pool) Begin(g *Group) *Scope {
	// This function is short enough to be inlined, so that the Scope needs no heap allocation.
	s := &Scope{pool: p, group: g}
	s.membership, s.err = beginGroupScope(p, g)
	return s
}

// beginGroupScope returns the group's membership for the pool. At the first scope, it creates the
// membership. It returns an error if the group cannot register the pool's memory.
func beginGroupScope(p *Pool, g *Group) (*membership, error) {
	if p.rt.recording.isActive() {
		p.events.recordScope(event.KindScopeBegin, g)
	}

	if g != nil && g.rt == p.rt {
		if m := g.windows.membershipOf(p); m != nil { // fast, without a lock
			return m, nil
		}
	}

	return p.registrar.findMembership(g)
}

// BeginDisabled opens a scope without a group. Its Alloc does not use p, but a pool of this rank
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

// checkUsable returns an error if the scope has ended or cannot be used.
func (s *Scope) checkUsable() error {
	if s.hasEnded {
		return fmt.Errorf("scope: %w", ErrClosed)
	}

	if s.pool == nil {
		return invalid("a zero Scope is not usable: call Pool.Begin")
	}

	return s.err
}

// End ends the scope and registers the pool's segments that the group has not registered yet. If
// there are any, all ranks of the group must call End. Otherwise, End does not communicate. For
// its errors, see Pool.Register.
func (s *Scope) End(ctx context.Context) error {
	ctx = orBackground(ctx)
	if err := s.checkUsable(); err != nil {
		return err
	}

	s.hasEnded = true
	if s.pool.rt.recording.isActive() {
		s.pool.events.recordScope(event.KindScopeEnd, s.group)
	}

	hasSegments := s.membership != nil && s.membership.hasPending.Load() // to register
	if !hasSegments {
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

// abandonOpen is Abandon for a scope that has not ended. It is a separate function, so that Abandon
// can be inlined.
func (s *Scope) abandonOpen() {
	s.hasEnded = true
	if s.pool != nil {
		s.pool.events.recordScope(event.KindScopeAbandon, s.group)
	}
}

// With opens a scope, calls run with it and ends it: with Scope.End or, if run returns an error or
// panics, with Scope.Abandon.
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
