package report

import (
	"encoding/json"
	"testing"
)

func TestReportJSONHasAllFields(t *testing.T) {
	report := New("test", Machine{})
	report.Results = []Result{{Name: "with baseline"}, {Name: "without baseline"}}
	report.Results[0].CompareTo("the other", Summary{Median: 1})
	out, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}

	var decoded struct {
		Bench   string
		Results []map[string]any
	}
	if err := json.Unmarshal(out, &decoded); err != nil {
		t.Fatal(err)
	}

	for _, r := range decoded.Results {
		for _, key := range []string{
			"name", "params", "ns_per_op", "allocs_per_op", "baseline", "baseline_ns_per_op",
			"ratio", "min_ns", "p10_ns", "p90_ns",
		} {
			if _, ok := r[key]; !ok {
				t.Errorf("the result %q lacks the field %s", r["name"], key)
			}
		}
	}

	if last := decoded.Results[1]; last["ratio"] != nil || last["baseline"] != nil {
		t.Errorf("the result without a baseline is %v, want null ratio and baseline", last)
	}
}

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name  string
		perOp []float64
		want  Summary
	}{
		{"no batches", nil, Summary{}},
		{"one batch", []float64{7}, Summary{7, 7, 7, 7, 1}},
		{"unsorted batches", []float64{3, 1, 2}, Summary{2, 1, 1, 3, 3}},
		{
			"eleven batches",
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

func TestMissedListsResultsAboveBar(t *testing.T) {
	r := New("test", Machine{})
	r.Results = []Result{
		{Name: "at bar", Summary: Summary{Median: 40}, Limit: 40},
		{Name: "above bar", Summary: Summary{Median: 41}, Limit: 40},
		{Name: "without bar", Summary: Summary{Median: 1e9}},
	}
	got := r.DescribeOverLimit()
	if len(got) != 1 || got[0] != "above bar: 41.0 ns, the limit is 40.0 ns" {
		t.Errorf("DescribeOverLimit() = %q, want only the result above its bar", got)
	}
}
