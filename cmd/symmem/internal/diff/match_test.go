package diff_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
)

// These tests cover which ranks Compare compares, and its notes about their files. Each rank has a
// file with its history: the calls that it made in a group, and the memory that it requested. For
// example, ranks 0 and 1 made three calls in the group "world", and rank 2 made none. If rank 2 is
// a member of the group, the calls are missing on rank 2, so the ranks differ. Otherwise, only
// ranks 0 and 1 are compared, and they agree.

const noStack = -1 // no call stack was recorded

// calls returns the events of calls, the first of which has the given time. Each of the others
// follows a microsecond later.
func calls(firstUnixMicro int64, count int) []history.Event {
	all := make([]history.Event, count)
	for i := range all {
		all[i] = history.Event{
			Action: history.Call, Stack: noStack, UnixMicro: firstUnixMicro + int64(i),
		}
	}

	return all
}

// threeCalls returns the events of three calls, for tests in which time does not matter.
func threeCalls() []history.Event { return calls(0, 3) }

// ranksWithCalls returns the histories of ranks 0, 1 and so on, which made the given calls. All
// calls are barriers in the group "world".
func ranksWithCalls(events ...[]history.Event) []*history.Rank {
	ranks := ranksOf(history.Calls, "world", events...)
	for _, r := range ranks {
		r.Texts = []string{"Barrier"}
	}

	return ranks
}

// removeCalls removes the calls of a rank, and the group in which it made them.
func removeCalls(r *history.Rank) { r.Sequences = nil }

// hasNote reports whether a note of a report contains a text.
func hasNote(r *diff.Report, want string) bool {
	return slices.ContainsFunc(r.Notes, func(note string) bool { return strings.Contains(note, want) })
}

// TestMissingFilesAreNoted compares the files of ranks 0, 1 and 3. A note must list the ranks whose
// files are missing: rank 2 and, if the group is known to have seven members, ranks 4 to 6.
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

// TestProcessIDsAreNoMissingFiles compares files whose names have the ID of a process instead of
// the number of a rank. There must be no note, although there is a gap between the IDs.
func TestProcessIDsAreNoMissingFiles(t *testing.T) {
	ranks := ranksWithCalls(threeCalls(), threeCalls())
	ranks[0].Number = 4211
	ranks[1].Number = 4222
	if r := diff.Compare(ranks, diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("notes = %q; want none", r.Notes)
	}
}

// rankWithoutCallsTest is a case of TestRankWithoutCalls.
type rankWithoutCallsTest struct {
	name       string
	isPartial  bool   // whether the file of rank 2 lacks its beginning
	membersIn0 []int  // members of the group according to the file of rank 0, or nil
	membersIn2 []int  // the same according to the file of rank 2
	want       string // the result of the comparison
}

// TestRankWithoutCalls compares ranks 0 and 1, which made calls in a group, with rank 2, which made
// none. The calls are missing on rank 2 only if it is known to be a member of the group, and if its
// file is complete.
func TestRankWithoutCalls(t *testing.T) {
	const agree = "agree"
	const missing = "missing on [2]" // the kind of the difference, and the ranks in the minority
	for _, c := range []rankWithoutCallsTest{
		{
			name:       "both files list rank 2",
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{0, 1, 2},
			want:       missing,
		},
		{
			name:       "only the file of rank 0 lists the members",
			membersIn0: []int{0, 1, 2},
			want:       missing,
		},
		{
			name: "no file lists the members",
			want: agree,
		},
		{
			name:       "rank 2 is not a member",
			membersIn0: []int{0, 1},
			membersIn2: []int{0, 1},
			want:       agree,
		},
		{
			name:       "the files list different members, so there are two groups of this name",
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{2},
			want:       agree,
		},
		{
			name:       "the calls may precede the file of rank 2",
			isPartial:  true,
			membersIn0: []int{0, 1, 2},
			membersIn2: []int{0, 1, 2},
			want:       agree,
		},
	} {
		r := diff.Compare(c.ranks(), diff.Options{})
		got := agree
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

// ranks returns the histories of the three ranks.
func (c *rankWithoutCallsTest) ranks() []*history.Rank {
	ranks := ranksWithCalls(threeCalls(), threeCalls(), nil)
	removeCalls(ranks[2])
	ranks[2].IsPartial = c.isPartial
	if c.membersIn0 != nil {
		ranks[0].Members = map[string][]int{"world": c.membersIn0}
	}

	if c.membersIn2 != nil {
		ranks[2].Members = map[string][]int{"world": c.membersIn2}
	}

	return ranks
}

// TestMemberWithoutCalls checks that calls are missing on rank 2 if its file contains one fact that
// shows that it is a member of the group. No file lists the members.
func TestMemberWithoutCalls(t *testing.T) {
	for name, addFact := range map[string]func(*history.Rank){
		"the group is the world": func(r *history.Rank) { r.WorldGroup = "world" },
		"rank 2 has registered memory with the group": func(r *history.Rank) {
			r.Windows = []history.Window{{Group: "world"}}
		},
		"rank 2 has a memory pool of the group": func(r *history.Rank) {
			r.Sequences = []*history.Sequence{{Class: history.SymmemPool, ID: "0 of group world"}}
		},
	} {
		ranks := ranksWithCalls(threeCalls(), threeCalls(), nil)
		removeCalls(ranks[2])
		addFact(ranks[2])
		if r := diff.Compare(ranks, diff.Options{}); r.RanksAgree {
			t.Errorf("%s: the ranks agree; want missing calls on rank 2", name)
		}
	}
}

// TestRankThatStops compares ranks 0 and 1, which made the same calls, with rank 2, which made
// fewer or more. The explanation must say which trace ends first. But a single call more is an
// extra call.
func TestRankThatStops(t *testing.T) {
	for _, c := range []struct {
		usualCount int    // calls of ranks 0 and 1
		oddCount   int    // calls of rank 2
		want       string // the explanation of the difference
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
		usual := calls(0, c.usualCount)
		odd := calls(0, c.oddCount)
		r := diff.Compare(ranksWithCalls(usual, usual, odd), diff.Options{})
		got := r.Sequences[0].RequestDifference.Explanation
		if want := []string{c.want}; !slices.Equal(got, want) {
			t.Errorf("%d and %d calls: explanation %q; want %q", c.usualCount, c.oddCount, got, want)
		}
	}
}

// TestFilesOfTwoRunsAreNoted checks that there is a note if the calls of rank 2 ended more than a
// minute before those of another rank began: its file may be of an earlier run. A difference of
// half a minute needs no note.
func TestFilesOfTwoRunsAreNoted(t *testing.T) {
	const second = 1_000_000 // in microseconds
	const minute = 60 * second
	const count = 3 // calls of each rank
	const usual = 9 * minute
	const slightlyLater = usual + 30*second
	const muchEarlier = 5 * minute
	ranks := ranksWithCalls(
		calls(usual, count), calls(slightlyLater, count), calls(muchEarlier, count))
	if r := diff.Compare(ranks, diff.Options{}); !hasNote(r, "rank 2 ended") {
		t.Errorf("notes = %q; want one about rank 2", r.Notes)
	}

	if r := diff.Compare(ranks[:2], diff.Options{}); len(r.Notes) > 0 {
		t.Errorf("without rank 2: notes = %q; want none", r.Notes)
	}
}

// TestRankWithoutTrace checks that only ranks 0 and 1 are compared if rank 2 has recorded none of
// its requests for memory.
func TestRankWithoutTrace(t *testing.T) {
	alloc := []history.Event{{Action: history.Alloc, Size: 512, Stack: noStack}}
	ranks := ranksOf(history.MemPool, "1", alloc, alloc, nil) // in pool 1
	ranks[2].Sequences = nil
	ranks[2].LacksTrace = true
	r := diff.Compare(ranks, diff.Options{})
	if !r.RanksAgree {
		t.Error("RanksAgree = false, want true")
	}

	s := r.Sequences[0]
	if want := []int{0, 1}; s.Title != "MemPool 1" || !slices.Equal(s.Ranks, want) {
		t.Errorf("%s was compared on ranks %v; want MemPool 1 on %v", s.Title, s.Ranks, want)
	}
}
