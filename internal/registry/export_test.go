package registry

import (
	"fmt"
	"iter"
	"slices"
)

// SegmentState is where a segment stands; see the package comment.
type SegmentState uint8

// The states of a segment.
const (
	// Gone: never tracked, or untracked.
	Gone SegmentState = iota
	// Tracked: registered with no group.
	Tracked
	// Registered: registered with at least one group.
	Registered
	// Releasing: about to be unmapped; its windows must go first.
	Releasing
)

var segmentStateNames = [...]string{"gone", "tracked", "registered", "releasing"}

// String returns the word for s.
func (s SegmentState) String() string {
	if int(s) >= len(segmentStateNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return segmentStateNames[s]
}

func (r *record) state() SegmentState {
	switch {
	case !r.live:
		return Gone
	case r.releasing:
		return Releasing
	case r.windows > 0:
		return Registered
	}
	return Tracked
}

// State returns where s stands and the number of groups that it is registered with.
func (r *Registry) State(s Segment) (state SegmentState, windows int) {
	rec, err := r.find(s)
	if err != nil {
		return Gone, 0
	}
	return rec.state(), int(rec.windows)
}

// Segments iterates over the tracked segments in the order of tracking.
func (r *Registry) Segments() iter.Seq[Segment] {
	return func(yield func(Segment) bool) {
		for i := range r.log {
			if r.log[i].live && !yield(r.log[i].segment) {
				return
			}
		}
	}
}

// Group returns the joined group with the given key.
func (r *Registry) Group(key GroupKey) (*Group, bool) {
	at, found := r.search(key)
	if !found {
		return nil, false
	}
	return r.groups[at], true
}

// Groups iterates over the joined groups in the order in which they register.
func (r *Registry) Groups() iter.Seq[*Group] { return slices.Values(r.groups) }

// Window returns the window of s in g.
func (g *Group) Window(s Segment) (Window, bool) {
	if _, err := g.find(s); err != nil {
		return 0, false
	}
	w, ok := g.windows[s.Ordinal]
	return w, ok
}

// Len returns the number of windows of g.
func (g *Group) Len() int { return len(g.windows) }
