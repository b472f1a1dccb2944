package bench

import (
	"errors"
	"testing"
	"time"
)

func TestSummaryIsTheMedianTheLeastAndTwoPercentiles(t *testing.T) {
	for _, c := range []struct {
		name  string
		perOp []float64
		want  Summary
	}{
		{"nothing was measured", nil, Summary{}},
		{"one batch is everything", []float64{7}, Summary{7, 7, 7, 7, 1}},
		{"order does not matter", []float64{3, 1, 2}, Summary{2, 1, 1, 3, 3}},
		{
			"one of eleven is beyond each percentile",
			[]float64{11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1},
			Summary{6, 1, 2, 10, 11},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Summarize(c.perOp); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// sink keeps allocations of tests on the heap.
var sink *[64]byte

func TestVariantsTakeTurnsAndEachBaselineGetsItsResult(t *testing.T) {
	var order []string
	variant := func(name string, allocate bool) Variant {
		return Variant{Name: name, Run: func(n int) error {
			order = append(order, name)
			for range n {
				if allocate {
					sink = new([64]byte)
				}
			}
			return nil
		}}
	}
	plan := Plan{Batch: time.Microsecond, Batches: 4}
	results, err := plan.Measure(Case{
		Name: "case", Ours: variant("ours", true), Bar: 1e9,
		Baselines: []Variant{variant("a", false), variant("b", false)},
	})
	if err != nil {
		t.Fatal(err)
	}
	// A batch runs twice: the lead-in goes before what is timed.
	var turns []string
	for i := len(order) - 24; i < len(order); i += 2 {
		turns = append(turns, order[i])
		if order[i+1] != order[i] {
			t.Fatalf("batches were %v", order[len(order)-24:])
		}
	}
	want := []string{"ours", "a", "b", "b", "a", "ours", "ours", "a", "b", "b", "a", "ours"}
	for i := range want {
		if turns[i] != want[i] {
			t.Fatalf("turns were %v", turns)
		}
	}
	if len(results) != 2 || *results[0].Baseline != "a" || *results[1].Baseline != "b" {
		t.Fatalf("results %+v", results)
	}
	for _, r := range results {
		// The runtime allocates now and then, too, which counts with so few operations.
		few := r.AllocsPerOp >= 1 && r.AllocsPerOp <= 3
		if *r.Ratio != *r.BaselineMedian/r.Median || r.Batches != 4 || !few {
			t.Errorf("result %+v", r)
		}
	}
}

func TestAnErrorOfAVariantEndsTheCase(t *testing.T) {
	broken := errors.New("broken")
	calls := 0
	for fail := 1; fail <= 3; fail++ {
		calls = 0
		_, err := Plan{Batch: 1, Batches: 2}.Measure(Case{Ours: Variant{Run: func(int) error {
			if calls++; calls == fail {
				return broken
			}
			_ = time.Now()
			return nil
		}}})
		if !errors.Is(err, broken) || calls != fail {
			t.Errorf("failing at call %d: %v after %d calls", fail, err, calls)
		}
	}
}

func TestABarIsMissedAboveIt(t *testing.T) {
	r := NewReport("test")
	r.Results = []Result{
		{Name: "on it", Summary: Summary{Median: 40}, Bar: 40},
		{Name: "over it", Summary: Summary{Median: 41}, Bar: 40},
		{Name: "over it", Summary: Summary{Median: 41}, Bar: 40},
		{Name: "without one", Summary: Summary{Median: 1e9}},
	}
	got := r.Missed()
	if len(got) != 1 || got[0] != "over it: 41.0 ns, the bar is 40.0 ns" {
		t.Errorf("missed %q", got)
	}
}

func TestModesOfRoundTrips(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after float64
		want          string
	}{
		{"two threads of one core", 50, 81, "smt"},
		{"one cache behind both", 105, 110, "near"},
		{"two caches", 260, 460, "far"},
		{"others work, too", 900, 5000, "busy"},
		{"the processors moved", 105, 460, "mixed"},
		{"one processor", 0, 0, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NewTrips(c.before, c.after).Mode; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
