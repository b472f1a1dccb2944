package agreement

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawRanks draws a set both ways: as a RankSet and as a map.
func drawRanks(t *rapid.T, label string) (RankSet, map[int]bool) {
	ranks := rapid.SliceOf(rapid.IntRange(0, 60)).Draw(t, label)
	var s RankSet
	m := map[int]bool{}
	for _, r := range ranks {
		s = s.union(ranksOf(r))
		m[r] = true
	}
	return s, m
}

func TestRankSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, inA := drawRanks(t, "a")
		b, inB := drawRanks(t, "b")
		both := maps.Clone(inA)
		maps.Copy(both, inB)
		u := a.union(b)
		want := slices.Sorted(maps.Keys(both))
		if got := slices.Collect(u.All()); !slices.Equal(got, want) || u.Len() != len(want) {
			t.Fatalf("%v or %v is %v, want %v", a, b, got, want)
		}
		for r := range 62 {
			if u.Contains(r) != both[r] || u.missing(62).Contains(r) == both[r] {
				t.Fatalf("rank %d: set %v, missing %v", r, u, u.missing(62))
			}
		}
		for i := 1; i < len(u); i++ {
			if u[i].First <= u[i-1].Last+1 {
				t.Fatalf("spans of %v touch", u)
			}
		}
		r := &reader{b: u.append(nil)}
		if back := r.rankSet("ranks"); r.err != nil || len(r.b) > 0 || !slices.Equal(back, u) {
			t.Fatalf("%v came back as %v: %v", u, back, r.err)
		}
	})
}

func TestRankSetInWords(t *testing.T) {
	s := RankSet{{0, 2}, {5, 5}}
	if got := s.words(); got != "ranks 0-2,5" {
		t.Errorf("got %q", got)
	}
	if got := ranksOf(7).words(); got != "rank 7" {
		t.Errorf("got %q", got)
	}
	if got := RankSet(nil).First(); got != -1 {
		t.Errorf("first of none is %d", got)
	}
}
