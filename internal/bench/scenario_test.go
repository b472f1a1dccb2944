package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// brief measures next to nothing: tests look at counts, not at times.
var brief = Plan{Batch: time.Microsecond, Batches: 3}

func TestWorkloadsPlayOnEveryAllocatorWithoutAllocating(t *testing.T) {
	report, err := Alloc(t.Context(), Plan{Batch: 10 * time.Millisecond, Batches: 1}, 200)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 12 {
		t.Fatalf("%d results", len(report.Results))
	}
	for _, r := range report.Results {
		if r.AllocsPerOp != 0 || r.Median <= 0 || *r.Ratio <= 0 {
			t.Errorf("%s: %+v", r.label(), r)
		}
	}
}

func TestScopesAreMeasuredAtEveryCombinationThatFits(t *testing.T) {
	report, err := Scope(t.Context(), brief, ScopeSizes{
		Segments: []int{2, 10}, Groups: []int{1, 3}, MaxWindows: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, r := range report.Results {
		labels = append(labels, r.label())
		if r.AllocsPerOp != 0 {
			t.Errorf("%s allocates %v", r.label(), r.AllocsPerOp)
		}
	}
	want := "scope groups=1 segments=2, scope groups=1 segments=10, scope groups=3 segments=2"
	if got := strings.Join(labels, ", "); got != want {
		t.Errorf("measured %s", got)
	}
}

func TestQueriesAreAnsweredRightByBothVariants(t *testing.T) {
	report, err := Query(t.Context(), brief, []int{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 4 {
		t.Fatalf("%d results", len(report.Results))
	}
}

func TestRegistrationGivesBackWhatItAddsAndComparesWithTheFirst(t *testing.T) {
	report, err := Register(t.Context(), brief, RegisterSizes{
		There: []int{0, 4}, New: []int{1, 3}, Ranks: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Results) != 4 {
		t.Fatalf("%d results", len(report.Results))
	}
	for i, r := range report.Results {
		if has := r.Ratio != nil; has != (i%2 == 1) {
			t.Errorf("%s has a baseline: %v", r.label(), has)
		}
	}
}

func TestAFreshSegmentFaultsOnEachPageOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("touches 256 MiB")
	}
	report := NewReport("register")
	if err := Faults(t.Context(), Plan{Batches: 1}, report); err != nil {
		t.Fatal(err)
	}
	owner, peer := report.Results[0].Counts, report.Results[1].Counts
	if owner["faults"] < 32 || owner["baseline faults"] < freshBytes/smallPage {
		t.Errorf("the owner's faults: %v", owner)
	}
	if peer["faults"] <= peer["baseline faults"] {
		t.Errorf("a peer's faults: %v", peer)
	}
}

func TestScaleCountsAreExact(t *testing.T) {
	report, err := Scale(t.Context(), brief, ScaleSizes{
		Ranks: []int{8}, Events: 500, Segments: []int{20}, Groups: []int{4},
	})
	if err != nil {
		t.Fatal(err)
	}
	agree, growth := report.Results[0], report.Results[2]
	if agree.Counts["rounds"] != 1 || agree.Counts["messages"] != 14 ||
		growth.Counts["windows"] != 80 || growth.Counts["scopes"] != 8 {
		t.Errorf("agree %v, growth %v", agree.Counts, growth.Counts)
	}
}

func TestTheJSONOfAReportHasTheFieldsThatToolsRead(t *testing.T) {
	report, err := Query(t.Context(), brief, []int{1})
	if err != nil {
		t.Fatal(err)
	}
	report.Results = append(report.Results, Result{Name: "alone"})
	var out bytes.Buffer
	if err := report.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var decoded struct {
		Bench   string
		Results []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &decoded); err != nil {
		t.Fatal(err)
	}
	for _, r := range decoded.Results {
		for _, key := range []string{
			"name", "params", "ns_per_op", "allocs_per_op", "baseline", "baseline_ns_per_op",
			"ratio", "min_ns", "p10_ns", "p90_ns",
		} {
			if _, has := r[key]; !has {
				t.Errorf("%s has no %s", r["name"], key)
			}
		}
	}
	if last := decoded.Results[2]; last["ratio"] != nil || last["baseline"] != nil {
		t.Errorf("a result without a baseline: %v", last)
	}
}
