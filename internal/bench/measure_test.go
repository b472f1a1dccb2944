package bench

import "testing"

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

func TestABarIsMissedAboveIt(t *testing.T) {
	r := NewReport("test")
	r.Results = []Result{
		{Name: "on it", Summary: Summary{Median: 40}, Bar: 40},
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
