package registry

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func segment(ordinal int32) Segment { return Segment{Ordinal: ordinal, Bytes: 2 << 20} }

func track(t testing.TB, r *Registry, ordinals ...int32) {
	t.Helper()
	for _, o := range ordinals {
		if err := r.Track(segment(o)); err != nil {
			t.Fatal(err)
		}
	}
}

func join(t testing.TB, r *Registry, key GroupKey) *Group {
	t.Helper()
	g, err := r.Join(key)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func register(t testing.TB, g *Group, ordinals ...int32) {
	t.Helper()
	for _, o := range ordinals {
		if err := g.Registered(segment(o), Window(100+o)); err != nil {
			t.Fatal(err)
		}
	}
}

func pending(g *Group) []int32 {
	out := []int32{}
	for _, s := range g.Pending(nil) {
		out = append(out, s.Ordinal)
	}
	return out
}

func wantPending(t testing.TB, g *Group, want ...int32) {
	t.Helper()
	if got := pending(g); !slices.Equal(got, want) {
		t.Fatalf("group %v has %v pending, want %v", g.key, got, want)
	}
	if g.HasPending() != (len(want) > 0) {
		t.Fatalf("HasPending is %v with %v pending", g.HasPending(), want)
	}
}

func wantError(t testing.TB, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("got error %v, want %v", got, want)
	}
}

func TestAScopeEndRegistersWhatIsNewAndNothingTwice(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	wantPending(t, g)
	track(t, &r, 0, 1)
	wantPending(t, g, 0, 1)
	register(t, g, 0, 1)
	wantPending(t, g)
	track(t, &r, 2)
	wantPending(t, g, 2)
	wantError(t, g.Registered(segment(0), 9), ErrRegistered)
}

func TestAFailureHalfWayLeavesTheRestPending(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	track(t, &r, 0, 1, 2, 3)
	register(t, g, 0, 1)
	wantPending(t, g, 2, 3)
	register(t, g, 3)
	wantPending(t, g, 2)
	register(t, g, 2)
	wantPending(t, g)
}

func TestANewGroupTakesOverAllLiveSegments(t *testing.T) {
	var r Registry
	first := join(t, &r, 1)
	track(t, &r, 0, 1, 2)
	register(t, first, 0, 1, 2)
	if _, err := r.Release(segment(1)); err != nil {
		t.Fatal(err)
	}
	wantPending(t, join(t, &r, 2), 0, 2)
}

func TestASegmentLeavesOnlyAfterItsWindows(t *testing.T) {
	var r Registry
	b, a := join(t, &r, 8), join(t, &r, 7)
	track(t, &r, 0)
	register(t, a, 0)
	register(t, b, 0)
	wantError(t, r.Untrack(segment(0)), ErrNotReleasing)
	windows, err := r.Release(segment(0))
	want := []Registration{
		{Group: 7, Segment: segment(0), Window: 100},
		{Group: 8, Segment: segment(0), Window: 100},
	}
	if diff := cmp.Diff(want, windows); diff != "" || err != nil {
		t.Fatalf("%v\n%s", err, diff)
	}
	wantError(t, r.Untrack(segment(0)), ErrWindowsRemain)
	for _, g := range []*Group{a, b} {
		if err := g.Deregistered(segment(0)); err != nil {
			t.Fatal(err)
		}
		wantPending(t, g)
	}
	if err := r.Untrack(segment(0)); err != nil {
		t.Fatal(err)
	}
	wantError(t, r.Untrack(segment(0)), ErrUnknownSegment)
	if state, _ := r.State(segment(0)); state != Gone || r.Len() != 0 {
		t.Fatalf("it is %v, %d are there", state, r.Len())
	}
}

func TestASuspendedGroupComesBack(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	track(t, &r, 0, 1, 2)
	register(t, g, 0, 1, 2)
	for _, w := range g.Windows() {
		if err := g.Deregistered(w.Segment); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, g.Deregistered(segment(0)), ErrNotRegistered)
	wantPending(t, g, 0, 1, 2)
}

func TestAnOrdinalInUseForASecondTimeIsAnotherSegment(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	track(t, &r, 0, 1)
	register(t, g, 1)
	if _, err := r.Release(segment(0)); err != nil {
		t.Fatal(err)
	}
	if err := r.Untrack(segment(0)); err != nil {
		t.Fatal(err)
	}
	wantPending(t, g)
	track(t, &r, 2)
	again := Segment{Ordinal: 0, Bytes: 64}
	if err := r.Track(again); err != nil {
		t.Fatal(err)
	}
	wantError(t, r.Track(again), ErrTracked)
	wantError(t, g.Registered(segment(0), 1), ErrUnknownSegment)
	if got := g.Pending(nil); !slices.Equal(got, []Segment{again, segment(2)}) {
		t.Fatalf("pending %v, want ordinal order", got)
	}
}

func TestAGroupClosesOnceItsWindowsAreGone(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	_, err := r.Join(g.key)
	wantError(t, err, ErrJoined)
	track(t, &r, 0)
	register(t, g, 0)
	wantError(t, g.Close(), ErrWindowsRemain)
	if err := g.Deregistered(segment(0)); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, g.Close(), ErrGroupGone)
	wantError(t, g.Registered(segment(0), 1), ErrGroupGone)
	wantPending(t, g)
	if _, ok := r.Group(g.key); ok {
		t.Fatal("a closed group is still there")
	}
}

func TestGroupsComeInTheOrderOfTheirKeys(t *testing.T) {
	var r Registry
	for _, k := range []GroupKey{9, 2, 31, 5} {
		join(t, &r, k)
	}
	var got []string
	for g := range r.Groups() {
		got = append(got, g.key.String())
	}
	if want := []string{"2", "5", "9", "1f"}; !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestSegmentsThatCannotBeAreRefused(t *testing.T) {
	var r Registry
	for _, s := range []Segment{{Ordinal: -1, Bytes: 1}, {Ordinal: maxSegments, Bytes: 1}, {}} {
		wantError(t, r.Track(s), ErrUnknownSegment)
	}
	_, err := r.Release(segment(3))
	wantError(t, err, ErrUnknownSegment)
	if _, ok := r.Segment(3); ok {
		t.Error("segment 3 is there")
	}
}

func TestWordsForStates(t *testing.T) {
	for _, s := range []struct{ got, want string }{
		{Releasing.String(), "releasing"},
		{SegmentState(9).String(), "state 9"},
		{segment(3).String(), "segment 3 (2097152 B)"},
	} {
		if s.got != s.want {
			t.Errorf("got %q, want %q", s.got, s.want)
		}
	}
}

func TestNothingPendingAllocatesNothing(t *testing.T) {
	var r Registry
	g := join(t, &r, 1)
	track(t, &r, 0, 1, 2)
	register(t, g, 0, 1, 2)
	dst := make([]Segment, 0, 4)
	if n := testing.AllocsPerRun(100, func() {
		if g.HasPending() || len(g.Pending(dst)) > 0 {
			t.Fatal("something is pending")
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
