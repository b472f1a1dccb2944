package bench

import (
	"encoding/json"
	"testing"
)

func TestTheJSONOfAReportHasTheFieldsThatToolsRead(t *testing.T) {
	report := NewReport("test")
	report.Results = []Result{{Name: "compared"}, {Name: "alone"}}
	report.Results[0].against("the other", Summary{Median: 1})
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
			if _, has := r[key]; !has {
				t.Errorf("%s has no %s", r["name"], key)
			}
		}
	}
	if last := decoded.Results[1]; last["ratio"] != nil || last["baseline"] != nil {
		t.Errorf("a result without a baseline: %v", last)
	}
}
