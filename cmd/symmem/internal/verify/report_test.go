package verify

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/driver"
)

// Findings of one rank about a case, which is an all-reduce of one buffer. The numbers in wrong are
// arbitrary. A buffer is symmetric if it is in a window, which is registered memory.
var (
	right         = finding{Completed: true, Symmetric: true}
	wrong         = finding{Completed: true, Symmetric: true, Wrong: 3, MaxDiff: 9, MeanDiff: 1}
	notRun        = finding{}
	withoutWindow = finding{Completed: true}
)

// TestCaseCombinesFindingsOfRanks merges what three ranks found about the same case.
func TestCaseCombinesFindingsOfRanks(t *testing.T) {
	const caseIndex = 0 // of the only case
	planned := &plannedCase{name: "1.1", round: 1, elements: 4, value: 2}
	for _, c := range []struct {
		name     string
		findings []finding // by rank
		want     Case      // without the fields that only depend on planned
	}{
		{
			name:     "all ranks pass",
			findings: []finding{right, right, right},
			want:     Case{Symmetric: true, Result: ResultPassed},
		},
		{
			name:     "one wrong rank",
			findings: []finding{right, wrong, right},
			want: Case{
				Symmetric: true, MaxDiff: 9, MeanDiff: 1, WrongRanks: []int{1}, Result: ResultFailed,
			},
		},
		{
			name:     "one unfinished rank",
			findings: []finding{right, notRun, right},
			want:     Case{Result: ResultNotRun},
		},
		{
			name:     "a wrong and an unfinished rank",
			findings: []finding{wrong, notRun, right},
			want:     Case{MaxDiff: 9, MeanDiff: 1, WrongRanks: []int{0}, Result: ResultFailed},
		},
		{
			name:     "a buffer outside windows",
			findings: []finding{right, right, withoutWindow},
			want:     Case{Result: ResultPassed},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var results []rankResult
			for rank, f := range c.findings {
				results = append(results, rankResult{Rank: rank, Findings: []finding{f}})
			}

			got := newCase(planned, caseIndex, len(results), results)
			want := c.want
			want.Name, want.Round = planned.name, planned.round
			want.Size, want.Value = planned.elements, planned.value
			want.Ranks = []int{0, 1, 2}
			want.Expected = 2 + 4 + 6 // the sum of value*(rank+1) over all ranks
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("newCase differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNonMembersDoNotAffectCase merges findings about a case of a group that does not contain the
// last rank. That rank cannot run the case, which must not change the result.
func TestNonMembersDoNotAffectCase(t *testing.T) {
	const ranks = 4
	const caseIndex = 0               // of the only case
	planned := &plannedCase{group: 1} // a group with the ranks 0 to 2
	nonMember := rankResult{Rank: 3, Findings: []finding{notRun}}
	results := []rankResult{
		{Rank: 0, Findings: []finding{right}},
		{Rank: 1, Findings: []finding{right}},
		{Rank: 2, Findings: []finding{right}},
		nonMember,
	}
	if c := newCase(planned, caseIndex, ranks, results); c.Result != ResultPassed || !c.Symmetric {
		t.Errorf("newCase with all results = %+v, want a symmetric pass", c)
	}

	// Without results of members, it is unknown whether the case ran.
	c := newCase(planned, caseIndex, ranks, []rankResult{nonMember})
	if c.Result != ResultNotRun || c.Symmetric {
		t.Errorf("newCase with only the result of rank 3 = %+v, want not run and not symmetric", c)
	}
}

// exampleReport returns a report of two ranks on five cases. Rank 0 found the third case wrong, and
// the last case did not run. d is the divergence that ended the run, or nil.
func exampleReport(d *symmem.DivergenceError) *Report {
	p := &program{cases: []plannedCase{
		{name: "1.churn8", round: 1, isChurn: true, elements: 100, value: 998},
		{name: "1.churn16", round: 1, isChurn: true, elements: 1000, value: 999},
		{name: "1.churn24", round: 1, isChurn: true, elements: 100, value: 1000},
		{name: "1.1", round: 1, elements: 262144, value: 1},
		{name: "1.2", round: 1, elements: 262144, value: 2},
	}}
	results := []rankResult{
		{Rank: 0, Findings: []finding{right, right, wrong, right, notRun}},
		{Rank: 1, Findings: []finding{right, right, right, right, notRun}},
	}
	if d != nil {
		results[1].Outcome, results[1].Text = ranksDiverged, d.Message
		results[1].Divergence = d
	}

	options := Report{
		Backend: "host", Ranks: 2, Check: "every", Placement: "address", RequestedPath: "window",
		Groups: 1, Rounds: 1,
	}
	return mergeResults(options, p, results)
}

// exampleDivergence returns a divergence in a group with four ranks, of which rank 2 differs.
func exampleDivergence() *symmem.DivergenceError {
	const request = "alloc 512 B (stream 0) -> segment "
	return &symmem.DivergenceError{
		Kind: symmem.DivergedPlacement, Group: "w/1.0", Members: []int{1, 0, 2, 10},
		Pool: "pool 7 of w/1.0", PoolID: 7, Position: 9, Deviant: []int{2},
		Sides: []symmem.Side{
			{Ranks: []int{0, 1, 10}, Event: request + "0 offset 0x0", Site: "a.go:7"},
			{Ranks: []int{2}, Event: request + "1 offset 0x0"},
		},
		Why: "different place", Message: "ranks diverged",
	}
}

// TestTextShowsAllResults checks the complete text of a report. The column Exp is the sum over the
// two ranks: three times the value. The first two cases, checks of random allocations (churn) with
// the same result, share a line with their total size, 1,100.
func TestTextShowsAllResults(t *testing.T) {
	var b bytes.Buffer
	if err := exampleReport(exampleDivergence()).WriteText(&b); err != nil {
		t.Fatal(err)
	}

	want := `2 ranks on the host backend; check every, placement address, path window

TestCase   Size     Value  Sym  Exp   MaxDiff     MeanDiff    Result
1.churn8   1,100    *      yes  *     0.00000000  0.00000000  PASS x 2
1.churn24  100      1000   yes  3000  9.00000000  1.00000000  FAIL
1.1        262,144  1      yes  3     0.00000000  0.00000000  PASS
1.2        262,144  2      -    6     -           -           DIVERGED

Total: 5 | Passed: 3 | Failed: 1 | Not run: 1

Divergence in group w/1.0, pool 7 of w/1.0, at event 9: earlier events are the same on every rank.

   rank  0 1 2 10
    has  A A B  A
             ^     deviates from the majority

  A  ranks 0-1,10  alloc 512 B (stream 0) -> segment 0 offset 0x0  at a.go:7
  B  rank 2        alloc 512 B (stream 0) -> segment 1 offset 0x0

  kind of difference: different place

  rank numbers are those of the world; the group has the ranks 1,0,2,10, in this order
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Fatalf("the text differs (-want +got):\n%s", diff)
	}
}

// TestDiagramShowsRangeAndOtherRanks checks a divergence whose position is known only as a range.
// The call of rank 10 is unknown.
func TestDiagramShowsRangeAndOtherRanks(t *testing.T) {
	d := exampleDivergence()
	d.Last = 12
	d.Sides[0].Ranks = []int{0, 1}
	d.Others, d.Deviant = []int{10}, nil
	var b bytes.Buffer
	diagram{d}.write(&b)
	want := `Divergence in group w/1.0, pool 7 of w/1.0, at one of the events 9 to 12.

   rank  0 1 2 10
    has  A A B  ?
  no majority

  A  ranks 0-1  alloc 512 B (stream 0) -> segment 0 offset 0x0  at a.go:7
  B  rank 2     alloc 512 B (stream 0) -> segment 1 offset 0x0
  ?  rank 10    something else
`
	got, _, _ := strings.Cut(b.String(), "\n  kind of difference")
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Fatalf("the text differs (-want +got):\n%s", diff)
	}
}

// TestWrongSumsWithoutErrorSuggestChecks checks that a report of wrong sums says how to find their
// cause if no divergence was found.
func TestWrongSumsWithoutErrorSuggestChecks(t *testing.T) {
	var b bytes.Buffer
	r := exampleReport(nil)
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}

	if r.OK() {
		t.Error("OK() = true with a failed case, want false")
	}

	if !strings.Contains(b.String(), "Run with --check every") {
		t.Errorf("the text does not suggest --check every:\n%s", &b)
	}
}

// TestReportJSONRoundTrip checks that a program that reads the JSON gets the whole report.
func TestReportJSONRoundTrip(t *testing.T) {
	r := exampleReport(exampleDivergence())
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}

	var decoded Report
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&decoded); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(*r, decoded); diff != "" {
		t.Fatalf("the decoded report differs (-encoded +decoded):\n%s", diff)
	}
}

func TestSpansAndThousands(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    string
	}{
		{nil, ""},
		{[]int{3}, "3"},
		{[]int{0, 1, 2}, "0-2"},
		{[]int{0, 2, 3, 7}, "0,2-3,7"},
	} {
		if got := driver.Spans(c.numbers); got != c.want {
			t.Errorf("Spans(%v) = %q, want %q", c.numbers, got, c.want)
		}
	}

	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1048576: "1,048,576"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

// TestFaultNamesRankWithUniqueError checks the text about an error that ended the run. It names the
// rank only if that distinguishes the rank from others. Texts about late ranks name them anyway.
func TestFaultNamesRankWithUniqueError(t *testing.T) {
	outOfMemory1 := rankResult{Rank: 1, Outcome: otherError, Text: "out of memory"}
	outOfMemory2 := rankResult{Rank: 2, Outcome: otherError, Text: "out of memory"}
	late := rankResult{Rank: 0, Outcome: rankLate, Text: "waited"}
	for _, c := range []struct {
		name    string
		results []rankResult
		want    string
	}{
		{
			"one of several ranks",
			[]rankResult{late, outOfMemory1},
			"rank 1: out of memory",
		},
		{
			"the same error on two ranks",
			[]rankResult{outOfMemory1, outOfMemory2},
			"out of memory",
		},
		{
			"a single rank",
			[]rankResult{outOfMemory1},
			"out of memory",
		},
		{
			"late ranks",
			[]rankResult{late, late},
			"waited",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := mergeResults(Report{}, &program{}, c.results); r.Fault != c.want {
				t.Errorf("Fault = %q, want %q", r.Fault, c.want)
			}
		})
	}
}

// TestReportNamesPathAndReason checks what a report says about the path: how all-reduces were
// implemented. If cases took another path than the requested one, the report gives the reason.
func TestReportNamesPathAndReason(t *testing.T) {
	tookWindow := rankResult{Paths: map[string]string{"window": "configured"}}
	tookPlain := rankResult{Paths: map[string]string{"plain": "there are no windows"}}
	nothingRan := rankResult{}
	for _, c := range []struct {
		name       string
		requested  string
		results    []rankResult // by rank
		wantTaken  string
		wantReason string // "" if the report must not give one
	}{
		{
			name:      "the requested path",
			requested: "window",
			results:   []rankResult{tookWindow, tookWindow},
			wantTaken: "window",
		},
		{
			name:       "another path",
			requested:  "window",
			results:    []rankResult{tookPlain, tookPlain},
			wantTaken:  "plain",
			wantReason: "there are no windows",
		},
		{
			name:       "two paths",
			requested:  "window",
			results:    []rankResult{tookWindow, tookPlain},
			wantTaken:  "plain, window",
			wantReason: "there are no windows",
		},
		{
			name:      "no requested path",
			requested: "auto",
			results:   []rankResult{tookPlain, tookPlain},
			wantTaken: "plain",
		},
		{
			name:      "nothing ran",
			requested: "window",
			results:   []rankResult{nothingRan, nothingRan},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mergeResults(Report{RequestedPath: c.requested}, &program{}, c.results)
			if r.TakenPaths != c.wantTaken || r.PathReason != c.wantReason {
				t.Errorf("TakenPaths = %q, PathReason = %q; want %q, %q", r.TakenPaths,
					r.PathReason, c.wantTaken, c.wantReason)
			}

			var text strings.Builder
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}

			line := "The path taken was " + c.wantTaken + ": " + c.wantReason + ".\n"
			isPrinted := strings.Contains(text.String(), line)
			wantPrinted := c.wantReason != ""
			if isPrinted != wantPrinted {
				t.Errorf("reason printed = %v, want %v; text:\n%s", isPrinted, wantPrinted, &text)
			}
		})
	}
}
