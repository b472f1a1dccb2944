package symmem

import (
	"context"
	"fmt"

	"symmem/event"
)

// Scope is a section of code whose allocations come from a pool and whose end registers the pool's
// new segments with a group. Scopes nest: each End registers them with its own group.
//
//	s := pool.Begin(group)
//	defer s.Abandon()
//	b, err := s.Alloc(bytes)
//	...
//	return s.End(ctx)
//
// A scope that is abandoned, as by a panic or an early return, registers nothing: the other ranks
// may not have come so far. What was allocated stays allocated, and is registered by the next end
// of a scope that all ranks reach.
//
// States: open, ended. The zero Scope is none that a pool has begun. A Scope is not safe for
// concurrent use, and is not copied.
type Scope struct {
	pool   *Pool
	group  *Group
	member *membership
	err    error
	ended  bool
}

// Begin opens a scope for a group. A group that cannot register the pool's memory makes Alloc and
// End return the reason. Go inlines it, so that a Scope which the caller keeps to itself is no
// garbage.
func (p *Pool) Begin(g *Group) *Scope {
	s := &Scope{pool: p, group: g}
	s.member, s.err = beginScope(p, g)
	return s
}

// beginScope reports the scope and returns the group's membership. If the group is a member
// already, it avoids the call of Pool.member.
func beginScope(p *Pool, g *Group) (*membership, error) {
	if p.rt.opts.OnEvent != nil {
		poolEvents{p}.scope(event.KindScopeBegin, g)
	}
	if g != nil && g.rt == p.rt {
		if m := g.windows.memberOf(p); m != nil {
			return m, nil
		}
	}
	return p.member(g)
}

// BeginDisabled opens a scope whose allocations come from memory of a pool without a domain and are
// never registered. It is for code that runs with symmetric memory on some calls and without on
// others, such as where ranks have tensors of different shapes.
func (p *Pool) BeginDisabled() *Scope {
	poolEvents{p.rt.local}.scope(event.KindScopeBegin, nil)
	return &Scope{pool: p.rt.local}
}

// Enabled reports whether the scope's allocations are symmetric.
func (s *Scope) Enabled() bool { return s.group != nil }

// Alloc returns a buffer for use on the default stream. See Pool.Alloc.
func (s *Scope) Alloc(bytes int64) (Buffer, error) {
	if err := s.usable(); err != nil {
		return Buffer{}, err
	}
	return s.pool.Alloc(bytes)
}

// AllocOn returns a buffer for use on a stream. See Pool.AllocOn.
func (s *Scope) AllocOn(on *Stream, bytes int64) (Buffer, error) {
	if err := s.usable(); err != nil {
		return Buffer{}, err
	}
	return s.pool.AllocOn(on, bytes)
}

func (s *Scope) usable() error {
	if s.ended {
		return fmt.Errorf("scope: %w", ErrClosed)
	}
	if s.pool == nil {
		return invalid("a scope that no pool has begun")
	}
	return s.err
}

// End ends the scope and registers what is new. It is collective over the group where something is;
// with nothing new it takes some nanoseconds and does not communicate. See Pool.Register for
// errors. A scope that has ended returns ErrClosed.
func (s *Scope) End(ctx context.Context) error {
	ctx = orBackground(ctx)
	if err := s.usable(); err != nil {
		return err
	}
	s.ended = true
	if s.pool.rt.opts.OnEvent != nil {
		poolEvents{s.pool}.scope(event.KindScopeEnd, s.group)
	}
	if s.member == nil || !s.member.pending.Load() {
		return nil
	}
	return s.pool.registerPending(ctx, s.group, s.member)
}

// Abandon ends the scope without registering. After End it does nothing, so it can be deferred.
func (s *Scope) Abandon() {
	if !s.ended {
		s.abandon()
	}
}

func (s *Scope) abandon() {
	s.ended = true
	if s.pool != nil {
		poolEvents{s.pool}.scope(event.KindScopeAbandon, s.group)
	}
}

// With runs a function in a scope of the group and ends it: registers what is new if the function
// returns nil, and abandons the scope if it returns an error or panics.
func (p *Pool) With(ctx context.Context, g *Group, f func(*Scope) error) error {
	ctx = orBackground(ctx)
	if f == nil {
		return invalid("a scope with no function to run in it")
	}
	s := p.Begin(g)
	defer s.Abandon()
	if err := s.usable(); err != nil {
		return err
	}
	if err := f(s); err != nil {
		return err
	}
	return s.End(ctx)
}
