package diff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

const noStack = -1 // no call stack was recorded

// calls returns the events of calls, which begin a microsecond after each other.
func calls(firstUnixMicro int64, count int) []history.Event {
	all := make([]history.Event, count)
	for i := range all {
		all[i] = history.Event{
			Action: history.Call, Stack: noStack, UnixMicro: firstUnixMicro + int64(i),
		}
	}

	return all
}

// threeCalls returns events of three calls whose time does not matter.
func threeCalls() []history.Event { return calls(0, 3) }

// ranksWithCalls returns what the files of ranks contain that made the given calls. All calls are
// barriers in the group "world". The numbers of the ranks are 0, 1 and so on.
func ranksWithCalls(events ...[]history.Event) []*history.Rank {
	ranks := ranksOf(history.Calls, "world", events...)
	for _, r := range ranks {
		r.Texts = []string{"Barrier"}
	}

	return ranks
}

// hasNote reports whether a note contains a text.
func hasNote(r *diff.Report, want string) bool {
	return slices.ContainsFunc(r.Notes, func(note string) bool { return strings.Contains(note, want) })
}

// TestMissingFilesAreNoted compares the files of ranks 0, 1 and 3. A note must list the ranks whose
// files are missing. These are gaps between the numbers and, if known, other members of the group.
func TestMissingFilesAreNoted(t *testing.T) {
	ranks := ranksWithCalls(threeCalls(), threeCalls(), threeCalls())
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
}

// TestProcessIDsAreNoMissingFiles compares files that are named after processes. The gaps between
// the numbers of processes must not count as missing files.
func TestProcessIDsAreNoMissingFiles(t *testing.T) {
	ranks := ranksWithCalls(threeCalls(), threeCalls())
	ranks[0].Number, ranks[1].Number = 4211, 4222
	if r := diff.Compare(ranks, diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("notes = %q; want none", r.Notes)
	}
}

// withoutCalls removes a rank's calls and the group to which they belong.
func withoutCalls(r *history.Rank) { r.Sequences = nil }

// TestRankWithoutCalls compares ranks 0 and 1, which made calls in a group, with rank 2, which made
// none. The calls are missing on rank 2 only if it is known to be a member of the group.
func TestRankWithoutCalls(t *testing.T) {
	const isAgreed, isMissing = "agree", "missing on [2]"
	for _, c := range []struct {
		name       string
		isPartial  bool  // whether the file of rank 2 lacks its beginning
		membersIn0 []int // members of the group according to the file of rank 0, or nil
		membersIn2 []int // the same according to the file of rank 2
		want       string
	}{
		{
			name:       "both files list rank 2",
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{0, 1, 2},
			want:       isMissing,
		},
		{
			name:       "only the file of rank 0 lists the members",
			membersIn0: []int{0, 1, 2},
			want:       isMissing,
		},
		{
			name: "no file lists the members",
			want: isAgreed,
		},
		{
			name:       "rank 2 is not a member",
			membersIn0: []int{0, 1},
			membersIn2: []int{0, 1},
			want:       isAgreed,
		},
		{
			name:       "two groups of the same name",
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{2},
			want:       isAgreed,
		},
		{
			name:       "the calls may precede the file of rank 2",
			isPartial:  true,
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{0, 1, 2},
			want:       isAgreed,
		},
	} {
		ranks := ranksWithCalls(threeCalls(), threeCalls(), nil)
		withoutCalls(ranks[2])
		ranks[2].IsPartial = c.isPartial
		if c.membersIn0 != nil {
			ranks[0].Members = map[string][]int{"world": c.membersIn0}
		}

		if c.membersIn2 != nil {
			ranks[2].Members = map[string][]int{"world": c.membersIn2}
		}

		r := diff.Compare(ranks, diff.Options{})
		got := isAgreed
		if d := r.Sequences[0].RequestDifference; d != nil {
			got = fmt.Sprintf("%s on %v", d.Kind, d.MinorityRanks)
		}

		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}

		notes := fmt.Sprint(r.Sequences[0].Notes)
		isNoted := strings.Contains(notes, "rank 2 was not compared")
		if isNoted != c.isPartial {
			t.Errorf("%s: notes = %q; has a note about rank 2 = %v, want %v", c.name, notes, isNoted,
				c.isPartial)
		}
	}
}

// TestMemberWithoutCalls compares ranks of which one has made no calls. Only one fact in its file
// shows that it is a member of the group.
func TestMemberWithoutCalls(t *testing.T) {
	for name, addFact := range map[string]func(*history.Rank){
		"the group is the world": func(r *history.Rank) { r.WorldGroup = "world" },
		"the group has a window": func(r *history.Rank) {
			r.Windows = []history.Window{{Group: "world"}}
		},
		"the group has a pool": func(r *history.Rank) {
			r.Sequences = []*history.Sequence{{Class: history.SymmemPool, ID: "0 of group world"}}
		},
	} {
		ranks := ranksWithCalls(threeCalls(), threeCalls(), nil)
		withoutCalls(ranks[2])
		addFact(ranks[2])
		if r := diff.Compare(ranks, diff.Options{}); r.RanksAgree {
			t.Errorf("%s: the ranks agree; want missing calls on rank 2", name)
		}
	}
}

// TestRankThatStops compares ranks 0 and 1, which made the same calls, with rank 2, which stopped
// earlier or later. A single extra call is a difference and not a later stop.
func TestRankThatStops(t *testing.T) {
	for _, c := range []struct {
		usualCount int // calls of ranks 0 and 1
		oddCount   int // calls of rank 2
		want       string
	}{
		{
			usualCount: 9,
			oddCount:   4,
			want:       "rank 2 against rank 0: the trace ends here; that of rank 0 has 5 more requests.",
		},
		{
			usualCount: 4,
			oddCount:   9,
			want: "rank 2 against rank 0: the trace of rank 0 ends here; " +
				"this one has 5 more requests.",
		},
		{
			usualCount: 4,
			oddCount:   5,
			want: "rank 2 against rank 0: this one difference (extra) explains the rest; " +
				"no request follows.",
		},
	} {
		usual, odd := calls(0, c.usualCount), calls(0, c.oddCount)
		r := diff.Compare(ranksWithCalls(usual, usual, odd), diff.Options{})
		got := r.Sequences[0].RequestDifference.Explanation
		if want := []string{c.want}; !slices.Equal(got, want) {
			t.Errorf("%d and %d calls: explanation %q; want %q", c.usualCount, c.oddCount, got, want)
		}
	}
}

// TestFilesOfTwoRunsAreNoted compares files whose last events are far apart in time, because an
// earlier run left one of them. Half a minute can pass between the ranks of one run.
func TestFilesOfTwoRunsAreNoted(t *testing.T) {
	const second = 1_000_000 // in microseconds
	const minute = 60 * second
	const count = 3 // calls of each rank
	const usual, slightlyLater, muchEarlier = 9 * minute, 9*minute + 30*second, 5 * minute
	ranks := ranksWithCalls(
		calls(usual, count), calls(slightlyLater, count), calls(muchEarlier, count))
	if r := diff.Compare(ranks, diff.Options{}); !hasNote(r, "rank 2 ended") {
		t.Errorf("notes = %q; want one about rank 2", r.Notes)
	}

	if r := diff.Compare(ranks[:2], diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("without rank 2: notes = %q; want none", r.Notes)
	}
}

// TestRankWithoutTrace compares ranks of which one has not recorded its requests. It is left out.
func TestRankWithoutTrace(t *testing.T) {
	alloc := []history.Event{{Action: history.Alloc, Size: 512, Stack: noStack}}
	ranks := ranksOf(history.MemPool, "1", alloc, alloc, nil)
	ranks[2].Sequences, ranks[2].LacksTrace = nil, true
	r := diff.Compare(ranks, diff.Options{})
	if !r.RanksAgree {
		t.Error("RanksAgree = false, want true")
	}

	s := r.Sequences[0]
	if want := []int{0, 1}; s.Title != "MemPool 1" || !slices.Equal(s.Ranks, want) {
		t.Errorf("%s was compared on ranks %v; want MemPool 1 on %v", s.Title, s.Ranks, want)
	}
}
