package registry

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the registry without cleverness: every answer is a search over everything.
type model struct {
	r         *Registry
	next      int32
	segments  []Segment // tracked, in order
	releasing map[Segment]bool
	groups    []*Group
	windows   map[*Group]map[Segment]Window
	token     Window
}

func (m *model) some(t *rapid.T) Segment {
	if len(m.segments) == 0 {
		t.Skip("no segment")
	}
	return rapid.SampledFrom(m.segments).Draw(t, "segment")
}

func (m *model) someGroup(t *rapid.T) *Group {
	if len(m.groups) == 0 {
		t.Skip("no group")
	}
	return rapid.SampledFrom(m.groups).Draw(t, "group")
}

func (m *model) track(t *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(t, "n") {
		s := Segment{Ordinal: m.next, Bytes: int64(m.next) + 1}
		m.next++
		if err := m.r.Track(s); err != nil {
			t.Fatal(err)
		}
		m.segments = append(m.segments, s)
	}
}

// reuse tracks an ordinal again that is free.
func (m *model) reuse(t *rapid.T) {
	if m.next == 0 {
		t.Skip("no ordinal has been used")
	}
	s := Segment{
		Ordinal: rapid.Int32Range(0, m.next-1).Draw(t, "ordinal"),
		Bytes:   rapid.Int64Range(1, 1<<40).Draw(t, "bytes"),
	}
	taken := slices.ContainsFunc(m.segments, func(o Segment) bool { return o.Ordinal == s.Ordinal })
	err := m.r.Track(s)
	if taken != errors.Is(err, ErrTracked) || !taken && err != nil {
		t.Fatalf("tracking %v, taken %v: %v", s, taken, err)
	}
	if !taken {
		m.segments = append(m.segments, s)
	}
}

func (m *model) join(t *rapid.T) {
	key := GroupKey(rapid.Uint64Range(0, 11).Draw(t, "id"))
	taken := slices.ContainsFunc(m.groups, func(g *Group) bool { return g.key == key })
	g, err := m.r.Join(key)
	if taken != (err != nil) {
		t.Fatalf("joining %v, taken %v: %v", key, taken, err)
	}
	if !taken {
		m.groups = append(m.groups, g)
		m.windows[g] = map[Segment]Window{}
	}
}

// registerSome registers a prefix of what is pending, as a scope end does that fails half-way.
func (m *model) registerSome(t *rapid.T) {
	g := m.someGroup(t)
	all := g.Pending(nil)
	for _, s := range all[:rapid.IntRange(0, len(all)).Draw(t, "upTo")] {
		m.registerOne(t, g, s)
	}
}

func (m *model) registerAny(t *rapid.T) { m.registerOne(t, m.someGroup(t), m.some(t)) }

func (m *model) registerOne(t *rapid.T, g *Group, s Segment) {
	m.token++
	_, there := m.windows[g][s]
	err := g.Registered(s, m.token)
	if (there || m.releasing[s]) != (err != nil) {
		t.Fatalf("registering %v with %v: %v", s, g.key, err)
	}
	if err == nil {
		m.windows[g][s] = m.token
	}
}

func (m *model) deregister(t *rapid.T) {
	g, s := m.someGroup(t), m.some(t)
	_, there := m.windows[g][s]
	if err := g.Deregistered(s); there != (err == nil) {
		t.Fatalf("deregistering %v from %v: %v", s, g.key, err)
	}
	delete(m.windows[g], s)
}

// release takes some windows of a segment down.
func (m *model) release(t *rapid.T) {
	s := m.some(t)
	windows, err := m.r.Release(s)
	if err != nil {
		t.Fatal(err)
	}
	m.releasing[s] = true
	for _, w := range windows[:rapid.IntRange(0, len(windows)).Draw(t, "upTo")] {
		g, _ := m.r.Group(w.Group)
		if m.windows[g][s] != w.Window {
			t.Fatalf("group %v has window %d for %v", w.Group, w.Window, s)
		}
		if err := g.Deregistered(s); err != nil {
			t.Fatal(err)
		}
		delete(m.windows[g], s)
	}
}

func (m *model) untrack(t *rapid.T) {
	s := m.some(t)
	left := 0
	for _, windows := range m.windows {
		if _, ok := windows[s]; ok {
			left++
		}
	}
	err := m.r.Untrack(s)
	if (m.releasing[s] && left == 0) != (err == nil) {
		t.Fatalf("untracking %v with %d windows: %v", s, left, err)
	}
	if err == nil {
		delete(m.releasing, s)
		m.segments = slices.DeleteFunc(m.segments, func(o Segment) bool { return o == s })
	}
}

// untrackMost empties the registry but for a few, so that tombstones are swept.
func (m *model) untrackMost(t *rapid.T) {
	for _, s := range slices.Clone(m.segments) {
		if rapid.IntRange(0, 9).Draw(t, "keep") == 0 {
			continue
		}
		windows, err := m.r.Release(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range windows {
			g, _ := m.r.Group(w.Group)
			_ = g.Deregistered(s)
			delete(m.windows[g], s)
		}
		if err := m.r.Untrack(s); err != nil {
			t.Fatal(err)
		}
		delete(m.releasing, s)
		m.segments = slices.DeleteFunc(m.segments, func(o Segment) bool { return o == s })
	}
}

func (m *model) leave(t *rapid.T) {
	g := m.someGroup(t)
	n := len(m.windows[g])
	if err := g.Close(); (n == 0) != (err == nil) {
		t.Fatalf("closing with %d windows: %v", n, err)
	} else if err != nil {
		return
	}
	delete(m.windows, g)
	m.groups = slices.DeleteFunc(m.groups, func(o *Group) bool { return o == g })
}

// check compares every answer with the search.
func (m *model) check(t *rapid.T) {
	if m.r.Len() != len(m.segments) || !slices.Equal(slices.Collect(m.r.Segments()), m.segments) {
		t.Fatalf("%d segments, want %d", m.r.Len(), len(m.segments))
	}
	if n := len(m.r.log); n > 2*len(m.segments)+compactFrom {
		t.Fatalf("a log of %d for %d segments", n, len(m.segments))
	}
	for _, g := range m.groups {
		var want []Segment
		for _, s := range m.segments {
			w, there := m.windows[g][s]
			if got, ok := g.Window(s); ok != there || got != w {
				t.Fatalf("window of %v in %v: %d, %v", s, g.key, got, ok)
			}
			if !there && !m.releasing[s] {
				want = append(want, s)
			}
		}
		slices.SortFunc(want, byOrdinal)
		if got := g.Pending(nil); !slices.Equal(got, want) || g.HasPending() != (len(want) > 0) {
			t.Fatalf("group %v has %v pending, want %v", g.key, got, want)
		}
		if g.Len() != len(m.windows[g]) || len(g.Windows()) != g.Len() {
			t.Fatalf("group %v has %d windows", g.key, g.Len())
		}
	}
}

func TestTheRegistryAnswersAsASearchOverEverythingWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{
			r: &Registry{}, releasing: map[Segment]bool{},
			windows: map[*Group]map[Segment]Window{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"":             m.check,
			"track":        m.track,
			"reuse":        m.reuse,
			"join":         m.join,
			"registerSome": m.registerSome,
			"registerAny":  m.registerAny,
			"deregister":   m.deregister,
			"release":      m.release,
			"untrack":      m.untrack,
			"untrackMost":  m.untrackMost,
			"leave":        m.leave,
		})
	})
}
