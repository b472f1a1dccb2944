package symmem

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"symmem/driver"
)

// groupWindow is a window of a segment in a group.
type groupWindow struct {
	group   *Group
	segment *segment
	window  driver.Window
}

// windows lists the windows over the pool's segments, ordered by the key of the group and the
// ordinal of the segment. The order is the same on all ranks.
func (s *suspender) windows() []groupWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []groupWindow
	byKey := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	for _, m := range slices.SortedFunc(maps.Values(s.registrar.members), byKey) {
		for _, seg := range s.segments.mapped() {
			if w := m.windows[seg]; w != nil {
				all = append(all, groupWindow{m.group, seg, w})
			}
		}
	}
	return all
}

// hold returns the pool's segments with a hold on each.
func (s *suspender) hold() []*segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments.hold(0, func(*segment) bool { return true })
}

// setRefusing makes Alloc refuse calls, or permits them.
func (s *suspender) setRefusing(refuses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments.refuses = refuses || s.segments.closed
}

// awaitRest waits until no goroutine moves the state.
func (s *suspender) awaitRest(ctx context.Context) error {
	moving := func() bool {
		state := s.state.Load()
		return state == poolSuspending || state == poolResuming
	}
	return poll(ctx, func() bool { return !moving() })
}

// unfinishedWork returns ErrBusy if the work of a stream does not end soon, and ErrCapturing if a
// stream is being captured.
func unfinishedWork(ctx context.Context, rt *Runtime) error {
	ctx, cancel := context.WithTimeout(ctx, workLimit)
	defer cancel()
	for _, s := range rt.streams.all() {
		err := s.drain(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			text := fmt.Sprintf("stream %d has unfinished work%s: synchronize it first", s.number,
				describeWait(rt))
			return &refusalError{text, ErrBusy}
		default:
			return fmt.Errorf("stream %d: %w", s.number, err)
		}
	}
	return nil
}

// describeWait describes what this rank waits for in some group, or returns "".
func describeWait(rt *Runtime) string {
	for _, g := range rt.registry.allGroups() {
		inspector, ok := g.comm.(driver.Inspector)
		if !ok {
			continue
		}
		for _, w := range inspector.Inspect().Waits {
			return fmt.Sprintf(" (%s waits for %s)", w.Doing, driver.RanksOf(w.Ranks, w.Members))
		}
	}
	return ""
}

// adoptedWindows returns ErrBusy if a segment is registered with a communicator of another library.
func adoptedWindows(rt *Runtime, held []*segment) error {
	rt.mu.Lock()
	adopted := rt.adopted
	rt.mu.Unlock()
	for _, a := range adopted {
		a.windowsMu.Lock()
		registered := slices.ContainsFunc(held, func(s *segment) bool { return a.windows[s] != nil })
		a.windowsMu.Unlock()
		if registered {
			text := fmt.Sprintf("memory is registered with communicator %q of another library: detach "+
				"the communicator first", a.name)
			return &refusalError{text, ErrBusy}
		}
	}
	return nil
}

// refusalError reports why a rank cannot suspend or resume memory, or cannot use it.
type refusalError struct {
	text string
	kind error // errors.Is matches it
}

func (e *refusalError) Error() string { return e.text }

// Unwrap returns the kind of the error.
func (e *refusalError) Unwrap() error { return e.kind }

// refusalKinds lists the kinds of refusals that ranks send to each other, by their index.
var refusalKinds = []error{ErrBusy, ErrCapturing, ErrOutOfMemory, ErrUnsupported, ErrSuspended}

// refusalMessage is a rank's refusal as it is sent to the other ranks.
type refusalMessage struct {
	Text string
	Kind int
}

// agreeOnRefusal sends this rank's refusal, or nil, to the other ranks. If any rank refuses, all
// ranks return the refusal of the first one. Group.mu is held.
func agreeOnRefusal(ctx context.Context, g *Group, refusal error) error {
	var mine []byte
	if refusal != nil {
		m := refusalMessage{Text: refusal.Error()}
		m.Text = m.Text[:min(len(m.Text), driver.MaxPayload/8)] // JSON may need six bytes for one
		m.Kind = max(0, slices.IndexFunc(refusalKinds, func(kind error) bool {
			return errors.Is(refusal, kind)
		}))
		mine, _ = json.Marshal(m) // cannot fail
	}
	got, err := g.comm.Exchange(ctx, driver.LaneControl, mine)
	if err != nil {
		return g.life.awaitCause(err)
	}
	for r, theirs := range got {
		if len(theirs) == 0 {
			continue
		}
		var m refusalMessage
		if err := json.Unmarshal(theirs, &m); err != nil || m.Kind >= len(refusalKinds) || m.Kind < 0 {
			return fmt.Errorf("decoding the refusal of rank %d: %w", g.ranks[r], err)
		}
		text := fmt.Sprintf("%s: %s", driver.RanksOf([]int{g.ranks[r]}, g.ranks), m.Text)
		return &refusalError{text, refusalKinds[m.Kind]}
	}
	return nil
}
