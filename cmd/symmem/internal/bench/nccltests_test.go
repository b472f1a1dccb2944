package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/bench/report"
)

func TestCountAndSizeMatchNCCLTests(t *testing.T) {
	for _, c := range []struct {
		name, operation string
		bytes           int64 // requested size
		ranks           int
		count, size     int64 // wanted results
	}{
		{"an all-reduce counts one vector", "all_reduce", 1024, 4, 256, 1024},
		{"an all-gather counts its output", "all_gather", 1024, 4, 64, 1024},
		{"a reduce-scatter counts its input", "reduce_scatter", 1024, 4, 64, 1024},
		{"a size that is not a multiple of the ranks is rounded up", "all_gather", 8, 4, 1, 16},
		{"a partial element is rounded up", "broadcast", 5, 2, 2, 8},
		{"a barrier has no bandwidth", "barrier", 1024, 2, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := operationNamed(t, c.operation)
			count, size := op.countAndSize(c.bytes, c.ranks, symmem.Float32)
			if count != c.count || size != c.size {
				t.Errorf("countAndSize(%d, %d, float32) = %d, %d; want %d, %d", c.bytes, c.ranks, count,
					size, c.count, c.size)
			}
		})
	}
}

func TestFormatWidth(t *testing.T) {
	for want, v := range map[string]float64{
		"0.07": 0.067, "9999.99": 9999.99, "99999.5": 99999.5, "1234568": 1234567.8,
		"123456789": 123456789,
	} {
		if got := formatWidth(v, 7); got != want {
			t.Errorf("formatWidth(%v, 7) = %q, want %q", v, got, want)
		}
	}
}

// TestRowsHaveNCCLTestsFormat writes three tables, and compares their rows and totals.
func TestRowsHaveNCCLTestsFormat(t *testing.T) {
	var out strings.Builder
	o := &CollectiveOptions{DataType: symmem.Float32, Checks: []symmem.CheckLevel{symmem.CheckOff}}
	table := NCCLTests{Writer: &out}
	newResult := func(ns, wrong float64) *report.Result {
		return &report.Result{
			Summary: report.Summary{Median: ns}, Figures: map[string]float64{"wrong": wrong},
		}
	}
	newRefusedResult := func(reason string) *report.Result {
		r := newResult(1e3, 0)
		r.Params = map[string]any{"took": "plain", "refused": reason}
		return r
	}
	for _, r := range []*Row{
		{
			Operation: operationNamed(t, "all_reduce"), Bytes: 1 << 20, Count: 1 << 18, Ranks: 4,
			Results: [2]*report.Result{newResult(20e3, 0), newResult(10e3, 0)},
		},
		{
			Operation: operationNamed(t, "broadcast"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newResult(1234567.8e3, 12)},
		},
		{
			Operation: operationNamed(t, "reduce"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newRefusedResult("no kernel"), newRefusedResult("no kernel")},
		},
		{
			Operation: operationNamed(t, "reduce"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newResult(1e3, 0), newRefusedResult("odd place")},
		},
	} {
		if err := table.WriteRow(o, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.WriteFooter(); err != nil {
		t.Fatal(err)
	}
	var rows []string // without the headers
	for line := range strings.Lines(out.String()) {
		isRow := !strings.HasPrefix(line, "#")
		isTotal := strings.Contains(line, " : ") || strings.Contains(line, "did not take")
		if isRow || isTotal {
			rows = append(rows, strings.TrimSuffix(line, "\n"))
		}
	}
	want := []string{
		"     1048576        262144     float     sum      -1" +
			"    20.00   52.43   78.64       0    10.00  104.86  157.29       0",
		"# Out of bounds values : 0 OK",
		"# Avg bus bandwidth    : 117.965",
		"           8             2     float    none       0" +
			"  1234568    0.00    0.00      12      N/A     N/A     N/A     N/A",
		"# Out of bounds values : 12 FAILED",
		"# Avg bus bandwidth    : 6.48e-09",
		"           8             2     float     sum       0" +
			"     1.00    0.01    0.01       0     1.00    0.01    0.01       0  # took plain",
		"# Out of bounds values : 0 OK",
		"# Avg bus bandwidth    : 0.008",
		"# did not take the requested path: no kernel",
		"           8             2     float     sum       0" +
			"     1.00    0.01    0.01       0     1.00    0.01    0.01       0  # took plain in place",
		"# Out of bounds values : 0 OK",
		"# Avg bus bandwidth    : 0.008",
		"# did not take the requested path: odd place",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows differ (-want +got):\n%s", diff)
	}
}
