package registry

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Errors of the registry. They come wrapped with the segment or group they are about.
var (
	// ErrTracked: the ordinal is in use already.
	ErrTracked = errors.New("segment is already tracked")
	// ErrUnknownSegment: the segment is not tracked.
	ErrUnknownSegment = errors.New("segment is not tracked")
	// ErrReleasing: the segment is about to be unmapped.
	ErrReleasing = errors.New("segment is being released")
	// ErrNotReleasing: Release must come first.
	ErrNotReleasing = errors.New("segment is not being released")
	// ErrWindowsRemain: windows must be deregistered first.
	ErrWindowsRemain = errors.New("windows remain registered")
	// ErrRegistered: the segment is registered with that group already.
	ErrRegistered = errors.New("segment is already registered with the group")
	// ErrNotRegistered: the segment is not registered with that group.
	ErrNotRegistered = errors.New("segment is not registered with the group")
	// ErrJoined: a group with that key is there already.
	ErrJoined = errors.New("group has already joined")
	// ErrGroupGone: the group was closed.
	ErrGroupGone = errors.New("group is closed")
)

// maxSegments bounds ordinals, so that a wrong one is an error and not a huge table.
const maxSegments = 1 << 24

// compactFrom is the length of the log below which tombstones are not worth removing.
const compactFrom = 64

// Registry holds the segments of one pool and the groups over it. The zero value is ready to use.
type Registry struct {
	// log is in order of tracking. Tombstones stay in it until they outnumber the live records.
	log  []record
	dead int
	// places maps an ordinal to its place in log plus one; 0 is none.
	places []int32
	// groups is sorted by key: the order in which several groups register.
	groups []*Group
}

// Track appends s to the log. Every joined group has it pending from now on.
func (r *Registry) Track(s Segment) error {
	if s.Ordinal < 0 || s.Ordinal >= maxSegments || s.Bytes <= 0 {
		return fmt.Errorf("tracking %v: %w", s, ErrUnknownSegment)
	}
	if int(s.Ordinal) >= len(r.places) {
		r.places = append(r.places, make([]int32, int(s.Ordinal)+1-len(r.places))...)
	}
	if r.places[s.Ordinal] != 0 {
		return fmt.Errorf("tracking %v: %w", s, ErrTracked)
	}
	r.log = append(r.log, record{segment: s, live: true})
	r.places[s.Ordinal] = int32(len(r.log))
	return nil
}

// find returns the record of s.
func (r *Registry) find(s Segment) (*record, error) {
	if s.Ordinal < 0 || int(s.Ordinal) >= len(r.places) || r.places[s.Ordinal] == 0 {
		return nil, ErrUnknownSegment
	}
	rec := &r.log[r.places[s.Ordinal]-1]
	if rec.segment != s {
		return nil, ErrUnknownSegment
	}
	return rec, nil
}

// Segment returns the tracked segment with the given ordinal.
func (r *Registry) Segment(ordinal int32) (Segment, bool) {
	if ordinal < 0 || int(ordinal) >= len(r.places) || r.places[ordinal] == 0 {
		return Segment{}, false
	}
	return r.log[r.places[ordinal]-1].segment, true
}

// Len returns the number of tracked segments.
func (r *Registry) Len() int { return len(r.log) - r.dead }

// Release takes s out of what groups register and returns the windows that must be deregistered
// before it is unmapped, in the order of the groups' keys. The caller reports each with
// [Group.Deregistered] and then calls [Registry.Untrack].
// Releasing twice is no error: what remains is returned again.
func (r *Registry) Release(s Segment) ([]Registration, error) {
	rec, err := r.find(s)
	if err != nil {
		return nil, fmt.Errorf("releasing %v: %w", s, err)
	}
	rec.releasing = true
	out := make([]Registration, 0, rec.windows)
	for _, g := range r.groups {
		if w, ok := g.windows[s.Ordinal]; ok {
			out = append(out, Registration{Group: g.key, Segment: s, Window: w})
		}
	}
	return out, nil
}

// Untrack forgets s, after which it may be unmapped. It refuses while windows remain. The cost does
// not depend on how many segments there are: the record becomes a tombstone, and tombstones are
// swept when they outnumber the rest.
func (r *Registry) Untrack(s Segment) error {
	rec, err := r.find(s)
	switch {
	case err != nil:
	case !rec.releasing:
		err = ErrNotReleasing
	case rec.windows > 0:
		err = ErrWindowsRemain
	}
	if err != nil {
		return fmt.Errorf("untracking %v: %w", s, err)
	}
	*rec = record{}
	r.places[s.Ordinal] = 0
	r.dead++
	if len(r.log) >= compactFrom && r.dead > len(r.log)/2 {
		r.compact()
	}
	return nil
}

// compact removes the tombstones and moves the cursors with the records they point at.
func (r *Registry) compact() {
	moved := make([]int, len(r.log)+1) // new place of each old one
	n := 0
	for i := range r.log {
		moved[i] = n
		if !r.log[i].live {
			continue
		}
		r.log[n] = r.log[i]
		n++
		r.places[r.log[n-1].segment.Ordinal] = int32(n)
	}
	moved[len(r.log)] = n
	for _, g := range r.groups {
		g.cursor = moved[g.cursor]
	}
	clear(r.log[n:])
	r.log, r.dead = r.log[:n], 0
}

// Join adds a group. It starts before the first segment, so that it takes over everything that is
// tracked.
func (r *Registry) Join(key GroupKey) (*Group, error) {
	at, found := r.search(key)
	if found {
		return nil, fmt.Errorf("joining group %v: %w", key, ErrJoined)
	}
	g := &Group{key: key, registry: r, windows: make(map[int32]Window)}
	r.groups = slices.Insert(r.groups, at, g)
	return g, nil
}

func (r *Registry) search(key GroupKey) (int, bool) {
	return slices.BinarySearchFunc(r.groups, key, func(g *Group, k GroupKey) int {
		return cmp.Compare(g.key, k)
	})
}
