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

// Findings of one rank about a case.
var (
	right         = finding{Completed: true, Symmetric: true}
	wrong         = finding{Completed: true, Symmetric: true, Wrong: 3, MaxDiff: 9, MeanDiff: 1}
	notRun        = finding{}
	withoutWindow = finding{Completed: true}
)

func TestCaseCombinesFindingsOfRanks(t *testing.T) {
	for _, c := range []struct {
		name     string
		findings []finding // by rank
		want     Case      // without the fields that are the same for all cases
	}{
		{"all ranks pass", []finding{right, right, right}, Case{Symmetric: true, Result: Passed}},
		{
			"one wrong rank",
			[]finding{right, wrong, right},
			Case{Symmetric: true, MaxDiff: 9, MeanDiff: 1, WrongRanks: []int{1}, Result: Failed},
		},
		{
			"one unfinished rank",
			[]finding{right, notRun, right},
			Case{Result: NotRun},
		},
		{
			"a wrong and an unfinished rank",
			[]finding{wrong, notRun, right},
			Case{MaxDiff: 9, MeanDiff: 1, WrongRanks: []int{0}, Result: Failed},
		},
		{
			"a buffer outside windows",
			[]finding{right, right, withoutWindow},
			Case{Result: Passed},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			results := make([]rankResult, len(c.findings))
			for r := range results {
				results[r] = rankResult{Rank: r, Findings: c.findings[r : r+1]}
			}
			planned := &plannedCase{name: "1.1", round: 1, elements: 4, value: 2}
			got := newCase(planned, 0, len(results), results)
			want := c.want
			want.Name, want.Round, want.Size, want.Value = "1.1", 1, 4, 2
			want.Ranks = []int{0, 1, 2}
			want.Expected = 2 + 4 + 6 // rank r contributes value*(r+1)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("newCase differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNonMembersDoNotAffectCase(t *testing.T) {
	results := []rankResult{
		{Rank: 0, Findings: []finding{right}},
		{Rank: 1, Findings: []finding{right}},
		{Rank: 2, Findings: []finding{right}},
		{Rank: 3, Findings: []finding{notRun}},
	}
	const ranks = 4
	planned := &plannedCase{group: 1} // a group with the ranks 0 to 2
	if c := newCase(planned, 0, ranks, results); c.Result != Passed || !c.Symmetric {
		t.Errorf("newCase with all results = %+v, want a symmetric pass", c)
	}
	onlyNonMember := results[3:]
	if c := newCase(planned, 0, ranks, onlyNonMember); c.Result != NotRun || c.Symmetric {
		t.Errorf("newCase with only the result of rank 3 = %+v, want not run", c)
	}
}

// exampleReport returns a report of two ranks on five cases, of which one failed and the last did
// not run. d is the divergence that ended the run, or nil.
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
	return mergeResults(Report{
		Backend: "host", Ranks: 2, Check: "every", Placement: "address", RequestedPath: "window",
		Groups: 1, Rounds: 1,
	}, p, results)
}

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
	for want, numbers := range map[string][]int{
		"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2-3,7": {0, 2, 3, 7},
	} {
		if got := driver.Spans(numbers); got != want {
			t.Errorf("Spans(%v) = %q, want %q", numbers, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1 << 20: "1,048,576"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestFaultNamesRankWithUniqueError(t *testing.T) {
	full := rankResult{Rank: 1, Outcome: otherError, Text: "out of memory"}
	alsoFull := rankResult{Rank: 2, Outcome: otherError, Text: "out of memory"}
	late := rankResult{Rank: 0, Outcome: rankLate, Text: "waited"}
	for _, c := range []struct {
		name    string
		results []rankResult
		want    string
	}{
		{"one of several ranks", []rankResult{late, full}, "rank 1: out of memory"},
		{"the same error on two ranks", []rankResult{full, alsoFull}, "out of memory"},
		{"a single rank", []rankResult{full}, "out of memory"},
		{"late ranks", []rankResult{late, late}, "waited"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := mergeResults(Report{}, &program{}, c.results); r.Fault != c.want {
				t.Errorf("Fault = %q, want %q", r.Fault, c.want)
			}
		})
	}
}

func TestReportNamesPathAndReason(t *testing.T) {
	windows := rankResult{Paths: map[string]string{"window": "configured"}}
	noWindows := rankResult{Paths: map[string]string{"plain": "there are no windows"}}
	for _, c := range []struct {
		name, path string // path is the requested path
		results    []rankResult
		took, why  string // wanted TakenPaths and PathReason
	}{
		{"the requested path", "window", []rankResult{windows, windows}, "window", ""},
		{"another path", "window", []rankResult{noWindows, noWindows}, "plain", "there are no windows"},
		{
			"two paths", "window",
			[]rankResult{windows, noWindows},
			"plain, window", "there are no windows",
		},
		{"no requested path", "auto", []rankResult{noWindows, noWindows}, "plain", ""},
		{"nothing ran", "window", []rankResult{{}, {}}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := mergeResults(Report{RequestedPath: c.path}, &program{}, c.results)
			if r.TakenPaths != c.took || r.PathReason != c.why {
				t.Errorf("TakenPaths = %q, PathReason = %q; want %q, %q", r.TakenPaths,
					r.PathReason, c.took, c.why)
			}
			var text strings.Builder
			if err := r.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			printed := strings.Contains(text.String(), "The path taken was "+c.took+": "+c.why+".\n")
			if printed != (c.why != "") {
				t.Errorf("reason printed = %v, want %v; text:\n%s", printed, c.why != "", &text)
			}
		})
	}
}
