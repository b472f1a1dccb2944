package registry

import (
	"cmp"
	"fmt"
	"slices"
)

// GroupKey is the unique id of a group that the ranks agreed on when it was made. Ranks that
// register several groups do so in the order of their keys; two orders on two ranks would wait for
// each other forever.
type GroupKey uint64

// String writes k in hexadecimal.
func (k GroupKey) String() string { return fmt.Sprintf("%x", uint64(k)) }

// Window is a token that the caller chose for a window. The registry hands it back and reads
// nothing into it.
type Window uint64

// Registration is one segment registered with one group.
type Registration struct {
	Group   GroupKey
	Segment Segment
	Window  Window
}

// Group is one group over the segments of a pool. It is guarded as its registry is.
type Group struct {
	key      GroupKey
	registry *Registry // nil once the group is gone
	// cursor is a place in the log: everything before it is registered here, a tombstone or
	// releasing.
	cursor  int
	windows map[int32]Window // by ordinal
}

// HasPending reports whether a segment waits to be registered with g. With nothing new it is one
// comparison; otherwise it steps over what needs no registration, once for each record.
func (g *Group) HasPending() bool {
	return g.registry != nil && g.cursor < len(g.registry.log) && g.advance()
}

// advance moves the cursor to the first pending record and reports whether there is one.
func (g *Group) advance() bool {
	for ; g.cursor < len(g.registry.log); g.cursor++ {
		if g.wants(&g.registry.log[g.cursor]) {
			return true
		}
	}
	return false
}

func (g *Group) wants(rec *record) bool {
	if !rec.live || rec.releasing {
		return false
	}
	_, ok := g.windows[rec.segment.Ordinal]
	return !ok
}

// Pending appends the segments that wait to be registered with g to dst, in ordinal order, which is
// the order in which all ranks register them. It allocates only if dst is too small.
func (g *Group) Pending(dst []Segment) []Segment {
	if !g.HasPending() {
		return dst
	}
	log, before := g.registry.log, len(dst)
	for i := g.cursor; i < len(log); i++ {
		if g.wants(&log[i]) {
			dst = append(dst, log[i].segment)
		}
	}
	// The log is in ordinal order except where an ordinal is in use for a second time.
	if fresh := dst[before:]; !slices.IsSortedFunc(fresh, byOrdinal) {
		slices.SortFunc(fresh, byOrdinal)
	}
	return dst
}

func byOrdinal(a, b Segment) int { return cmp.Compare(a.Ordinal, b.Ordinal) }

// Registered reports that the backend has registered s with g as window w. The order is free; what
// was skipped stays pending. Registering twice is refused, and so is a segment that began to be
// released meanwhile: its window must be deregistered by the caller.
func (g *Group) Registered(s Segment, w Window) error {
	rec, err := g.find(s)
	if err == nil {
		_, there := g.windows[s.Ordinal]
		switch {
		case there:
			err = ErrRegistered
		case rec.releasing:
			err = ErrReleasing
		}
	}
	if err != nil {
		return fmt.Errorf("registering %v with group %v: %w", s, g.key, err)
	}
	g.windows[s.Ordinal] = w
	rec.windows++
	g.advance()
	return nil
}

// Deregistered reports that the backend has deregistered s from g. Unless s is being released it is
// pending again, which is how a suspended group comes back.
func (g *Group) Deregistered(s Segment) error {
	rec, err := g.find(s)
	if err == nil {
		if _, there := g.windows[s.Ordinal]; !there {
			err = ErrNotRegistered
		}
	}
	if err != nil {
		return fmt.Errorf("deregistering %v from group %v: %w", s, g.key, err)
	}
	delete(g.windows, s.Ordinal)
	rec.windows--
	if !rec.releasing {
		g.cursor = min(g.cursor, int(g.registry.places[s.Ordinal])-1)
	}
	return nil
}

func (g *Group) find(s Segment) (*record, error) {
	if g.registry == nil {
		return nil, ErrGroupGone
	}
	rec, err := g.registry.find(s)
	return rec, err
}

// Windows returns the registrations of g in ordinal order.
func (g *Group) Windows() []Registration {
	out := make([]Registration, 0, len(g.windows))
	for ordinal, w := range g.windows {
		s, _ := g.registry.Segment(ordinal)
		out = append(out, Registration{Group: g.key, Segment: s, Window: w})
	}
	slices.SortFunc(out, func(a, b Registration) int { return byOrdinal(a.Segment, b.Segment) })
	return out
}

// Close takes g down in order. It refuses while windows remain: deregister them first.
func (g *Group) Close() error {
	if g.registry == nil {
		return fmt.Errorf("closing group %v: %w", g.key, ErrGroupGone)
	}
	if len(g.windows) > 0 {
		return fmt.Errorf("closing group %v with %d windows: %w",
			g.key, len(g.windows), ErrWindowsRemain)
	}
	g.leave()
	return nil
}

func (g *Group) leave() {
	r := g.registry
	if at, found := r.search(g.key); found {
		r.groups = slices.Delete(r.groups, at, at+1)
	}
	g.registry, g.windows = nil, nil
}
