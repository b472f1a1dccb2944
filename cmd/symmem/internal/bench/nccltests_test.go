package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/bench/report"
)

// TestCountAndSizeMatchNCCLTests checks how many float32 elements, of 4 bytes, a call gets for a
// requested size, and which size nccl-tests would print. Depending on the operation, the size is
// that of one vector or of the vectors of all ranks together.
func TestCountAndSizeMatchNCCLTests(t *testing.T) {
	for _, c := range []struct {
		name      string
		operation string
		bytes     int64 // requested size
		ranks     int
		wantCount int64 // count argument of each rank
		wantSize  int64 // size in the table, in bytes
	}{
		{"an all-reduce counts one vector", "all_reduce", 1024, 4, 1024 / 4, 1024},
		{"an all-gather counts its output", "all_gather", 1024, 4, 1024 / 4 / 4, 1024},
		{"a reduce-scatter counts its input", "reduce_scatter", 1024, 4, 1024 / 4 / 4, 1024},
		{"a size that is not a multiple of the ranks is rounded up", "all_gather", 8, 4, 1, 16},
		{"a partial element is rounded up", "broadcast", 5, 2, 2, 8},
		{"a barrier has no bandwidth", "barrier", 1024, 2, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := operationNamed(t, c.operation)
			count, size := op.countAndSize(c.bytes, c.ranks, symmem.Float32)
			if count != c.wantCount || size != c.wantSize {
				t.Errorf("countAndSize(%d, %d, float32) = %d, %d; want %d, %d", c.bytes, c.ranks, count,
					size, c.wantCount, c.wantSize)
			}
		})
	}
}

// TestFormatWidth formats numbers for a column of 7 characters. They get two decimals if these fit.
func TestFormatWidth(t *testing.T) {
	const width = 7
	for _, c := range []struct {
		value float64
		want  string
	}{
		{0.067, "0.07"},
		{9999.99, "9999.99"},
		{99999.5, "99999.5"},
		{1234567.8, "1234568"},
		{123456789, "123456789"}, // does not fit
	} {
		if got := formatWidth(c.value, width); got != c.want {
			t.Errorf("formatWidth(%v, %d) = %q, want %q", c.value, width, got, c.want)
		}
	}
}

const microsecond = 1e3 // in nanoseconds

// newResult returns the result of calls that take a time in nanoseconds.
func newResult(ns, wrongElements float64) *report.Result {
	return &report.Result{
		Summary: report.Summary{Median: ns}, Figures: map[string]float64{"wrong": wrongElements},
	}
}

// newRefusedResult returns the result of calls of 1 microsecond that did not take the requested
// path, but the path plain.
func newRefusedResult(reason string) *report.Result {
	r := newResult(1*microsecond, 0)
	r.Params = map[string]any{"took": "plain", "refused": reason}
	return r
}

// TestRowsHaveNCCLTestsFormat writes four tables with one row each, and compares their rows and
// totals. A row has the results of calls out of place and in place. An algorithm bandwidth is the
// size divided by the time. For an all-reduce of n ranks, the bus bandwidth is 2*(n-1)/n times
// that.
func TestRowsHaveNCCLTestsFormat(t *testing.T) {
	var out strings.Builder
	o := &CollectiveOptions{DataType: symmem.Float32, Checks: []symmem.CheckLevel{symmem.CheckOff}}
	table := NCCLTests{Writer: &out}
	// The tables are separate, because each row has another *Operation.
	for _, r := range []*Row{
		{
			Operation: operationNamed(t, "all_reduce"), Bytes: 1 << 20, Count: 1 << 18, Ranks: 4,
			Results: [2]*report.Result{newResult(20*microsecond, 0), newResult(10*microsecond, 0)},
		},
		{
			Operation: operationNamed(t, "broadcast"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newResult(1234567.8*microsecond, 12)},
		},
		{
			Operation: operationNamed(t, "reduce"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newRefusedResult("no kernel"), newRefusedResult("no kernel")},
		},
		{
			Operation: operationNamed(t, "reduce"), Bytes: 8, Count: 2, Ranks: 2,
			Results: [2]*report.Result{newResult(1*microsecond, 0), newRefusedResult("odd place")},
		},
	} {
		if err := table.WriteRow(o, r); err != nil {
			t.Fatal(err)
		}
	}

	if err := table.WriteFooter(); err != nil {
		t.Fatal(err)
	}

	var rowsAndTotals []string // without the headers
	for line := range strings.Lines(out.String()) {
		isRow := !strings.HasPrefix(line, "#")
		isTotal := strings.Contains(line, " : ") || strings.Contains(line, "did not take")
		if isRow || isTotal {
			rowsAndTotals = append(rowsAndTotals, strings.TrimSuffix(line, "\n"))
		}
	}

	// The columns are size, count, type, reduction and root, and then twice time, algorithm
	// bandwidth, bus bandwidth and wrong elements.
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
	if diff := cmp.Diff(want, rowsAndTotals); diff != "" {
		t.Errorf("rows and totals differ (-want +got):\n%s", diff)
	}
}
