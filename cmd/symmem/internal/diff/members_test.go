package diff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

// calls returns events of calls, the first of which has the given time.
func calls(unixMicro int64, count int) []history.Event {
	all := make([]history.Event, count)
	for i := range all {
		all[i] = history.Event{Action: history.Call, Stack: -1, UnixMicro: unixMicro + int64(i)}
	}
	return all
}

// ranksWithCalls returns ranks with the given calls in the world, all of which are barriers.
func ranksWithCalls(events ...[]history.Event) []*history.Rank {
	ranks := ranksOf(history.Calls, "world", events...)
	for _, r := range ranks {
		r.Texts = []string{"Barrier"}
	}
	return ranks
}

func hasNote(r *diff.Report, want string) bool {
	return slices.ContainsFunc(r.Notes, func(note string) bool { return strings.Contains(note, want) })
}

func TestMissingFilesAreNoted(t *testing.T) {
	ranks := ranksWithCalls(calls(0, 3), calls(0, 3), calls(0, 3))
	ranks[2].Number = 3
	r := diff.Compare(ranks, diff.Options{})
	if !r.RanksAgree || !hasNote(r, "no file of rank 2") {
		t.Errorf("agree = %v, notes = %q; want true and a note about rank 2", r.RanksAgree, r.Notes)
	}
	for _, rank := range ranks {
		rank.Members = map[string][]int{"world": {0, 1, 2, 3, 4, 5, 6}}
	}
	if r := diff.Compare(ranks, diff.Options{}); !hasNote(r, "no file of ranks 2,4-6") {
		t.Errorf("notes = %q; want one about ranks 2 and 4 to 6", r.Notes)
	}
	ranks = ranksWithCalls(calls(0, 3), calls(0, 3))
	ranks[0].Number, ranks[1].Number = 4211, 4222 // process ids in the names of snapshots
	if r := diff.Compare(ranks, diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("notes = %q; want none", r.Notes)
	}
}

// TestRankWithoutCalls compares a group in which a member has made no call.
func TestRankWithoutCalls(t *testing.T) {
	for _, c := range []struct {
		isPartial bool     // whether the file of rank 2, which has no calls, lacks its beginning
		members   [2][]int // members of the group according to the files of ranks 0 and 2
		want      string
	}{
		{false, [2][]int{{0, 1, 2}, {0, 1, 2}}, "missing on [2]"},
		{false, [2][]int{{0, 1, 2}, nil}, "missing on [2]"},
		{false, [2][]int{nil, nil}, "agree"},
		{false, [2][]int{{0, 1}, {0, 1}}, "agree"},
		{false, [2][]int{{0, 1, 2}, {2}}, "agree"}, // two groups of the same name
		{true, [2][]int{{0, 1, 2}, {0, 1, 2}}, "agree"},
	} {
		ranks := ranksWithCalls(calls(0, 3), calls(0, 3), nil)
		ranks[2].Sequences, ranks[2].IsPartial = nil, c.isPartial
		for i, rank := range []int{0, 2} {
			if c.members[i] != nil {
				ranks[rank].Members = map[string][]int{"world": c.members[i]}
			}
		}
		r := diff.Compare(ranks, diff.Options{})
		got := "agree"
		if d := r.Sequences[0].RequestDifference; d != nil {
			got = fmt.Sprintf("%s on %v", d.Kind, d.MinorityRanks)
		}
		if got != c.want {
			t.Errorf("%+v: %s; want %s", c, got, c.want)
		}
		notes := fmt.Sprint(r.Sequences[0].Notes)
		isNoted := strings.Contains(notes, "rank 2 was not compared")
		if isNoted != c.isPartial {
			t.Errorf("%+v: notes = %q; has a note about rank 2 = %v, want %v", c, notes, isNoted,
				c.isPartial)
		}
	}
}

// TestMemberWithoutCalls compares ranks of which one has made no calls. Only one fact in its file
// shows that it is a member of the group.
func TestMemberWithoutCalls(t *testing.T) {
	for name, addFact := range map[string]func(*history.Rank){
		"world":  func(r *history.Rank) { r.WorldGroup = "world" },
		"window": func(r *history.Rank) { r.Windows = []history.Window{{Group: "world"}} },
		"pool": func(r *history.Rank) {
			r.Sequences = []*history.Sequence{{Class: history.SymmemPool, ID: "0 of group world"}}
		},
	} {
		ranks := ranksWithCalls(calls(0, 3), calls(0, 3), nil)
		ranks[2].Sequences = nil
		addFact(ranks[2])
		if r := diff.Compare(ranks, diff.Options{}); r.RanksAgree {
			t.Errorf("%s: the ranks agree; want missing calls on rank 2", name)
		}
	}
}

func TestRankThatStops(t *testing.T) {
	for counts, want := range map[[3]int]string{
		{9, 9, 4}: "rank 2 against rank 0: the trace ends here; that of rank 0 has 5 more requests.",
		{4, 4, 9}: "rank 2 against rank 0: the trace of rank 0 ends here; this one has 5 more requests.",
		{4, 4, 5}: "rank 2 against rank 0: this one difference (extra) explains the rest; " +
			"no request follows.",
	} {
		r := diff.Compare(ranksWithCalls(calls(0, counts[0]), calls(0, counts[1]), calls(0, counts[2])),
			diff.Options{})
		if got := r.Sequences[0].RequestDifference.Explanation; len(got) != 1 || got[0] != want {
			t.Errorf("%v calls: explanation %q; want %q", counts, got, want)
		}
	}
}

func TestFilesOfTwoRunsAreNoted(t *testing.T) {
	const minute = 60_000_000 // in microseconds
	ranks := ranksWithCalls(calls(9*minute, 3), calls(9*minute+minute/2, 3), calls(5*minute, 3))
	if r := diff.Compare(ranks, diff.Options{}); !hasNote(r, "rank 2 ended") {
		t.Errorf("notes = %q; want one about rank 2", r.Notes)
	}
	if r := diff.Compare(ranks[:2], diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("notes = %q; want none", r.Notes)
	}
}

// TestRankWithoutTrace compares ranks of which one has not recorded its requests.
func TestRankWithoutTrace(t *testing.T) {
	alloc := []history.Event{{Action: history.Alloc, Size: 512, Stack: -1}}
	ranks := ranksOf(history.MemPool, "1", alloc, alloc, nil)
	ranks[2].Sequences, ranks[2].LacksTrace = nil, true
	r := diff.Compare(ranks, diff.Options{})
	s := r.Sequences[0]
	if !r.RanksAgree || s.Title != "MemPool 1" || fmt.Sprint(s.Ranks) != "[0 1]" {
		t.Errorf("%s was compared on ranks %v with agree = %v; want MemPool 1, [0 1] and true", s.Title,
			s.Ranks, r.RanksAgree)
	}
}
