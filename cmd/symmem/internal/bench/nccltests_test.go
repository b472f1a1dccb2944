package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem"
	"symmem/bench/report"
)

// For all_gather of 1024 bytes on 4 ranks, each rank sends 64 float32 elements. The size is 1024,
// because each rank receives the elements of all ranks.
func TestCountAndSizeMatchNCCLTests(t *testing.T) {
	const elementBytes = 4 // of a float32
	for _, c := range []struct {
		name      string
		operation string
		bytes     int64 // requested size
		ranks     int
		wantCount int64 // argument of each rank
		wantSize  int64 // in the printed row
	}{
		{
			name:      "an all-reduce counts the vector of one rank",
			operation: "all_reduce", bytes: 1024, ranks: 4,
			wantCount: 1024 / elementBytes, wantSize: 1024,
		},
		{
			name:      "an all-gather counts its output",
			operation: "all_gather", bytes: 1024, ranks: 4,
			wantCount: 1024 / 4 / elementBytes, wantSize: 1024,
		},
		{
			name:      "a reduce-scatter counts its input",
			operation: "reduce_scatter", bytes: 1024, ranks: 4,
			wantCount: 1024 / 4 / elementBytes, wantSize: 1024,
		},
		{
			name:      "a size that is not a multiple of the ranks is rounded up",
			operation: "all_gather", bytes: 8, ranks: 4,
			wantCount: 1, wantSize: 16,
		},
		{
			name:      "a partial element is rounded up",
			operation: "broadcast", bytes: 5, ranks: 2,
			wantCount: 2, wantSize: 8,
		},
		{
			name:      "a barrier has no buffer",
			operation: "barrier", bytes: 1024, ranks: 2,
			wantCount: 0, wantSize: 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := operationNamed(t, c.operation)
			count, size := op.countAndSize(c.bytes, c.ranks, symmem.Float32)
			if count != c.wantCount || size != c.wantSize {
				t.Errorf("countAndSize(%d, %d, float32) = %d, %d; want %d, %d", c.bytes, c.ranks,
					count, size, c.wantCount, c.wantSize)
			}
		})
	}
}

func TestFormatWidth(t *testing.T) {
	const width = 7
	for _, c := range []struct {
		value float64
		want  string
	}{
		{value: 0.067, want: "0.07"},
		{value: 9999.99, want: "9999.99"},
		{value: 99999.5, want: "99999.5"},
		{value: 1234567.8, want: "1234568"},
		{value: 123456789, want: "123456789"}, // does not fit
	} {
		if got := formatWidth(c.value, width); got != c.want {
			t.Errorf("formatWidth(%v, %d) = %q, want %q", c.value, width, got, c.want)
		}
	}
}

const microsecond = 1e3 // in nanoseconds

func newResult(medianNS, wrongElements float64) *report.Result {
	return &report.Result{
		Summary: report.Summary{Median: medianNS},
		Figures: map[string]float64{"wrong": wrongElements},
	}
}

// newRefusedResult returns the result of calls that took the plain path for the given reason.
func newRefusedResult(reason string) *report.Result {
	r := newResult(1*microsecond, 0)
	r.Params = map[string]any{"took": "plain", "refused": reason}
	return r
}

func TestRowsHaveNCCLTestsFormat(t *testing.T) {
	var out strings.Builder
	o := &CollectiveOptions{DataType: symmem.Float32, Checks: []symmem.CheckLevel{symmem.CheckOff}}
	table := NCCLTests{Writer: &out}
	// Each row begins a new table, because its *Operation is a new pointer.
	rows := []*Row{
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
			Results: [2]*report.Result{newResult(1*microsecond, 0), newRefusedResult("alignment")},
		},
	}
	for _, r := range rows {
		if err := table.WriteRow(o, r); err != nil {
			t.Fatal(err)
		}
	}

	if err := table.WriteFooter(); err != nil {
		t.Fatal(err)
	}

	// The first line of each row has the size, count, type, redop and root. The second line has the
	// time, algorithm bandwidth (size/time), bus bandwidth and wrong elements of the result out of
	// place, and then those of the result in place.
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
		"# did not take the requested path: alignment",
	}
	if diff := cmp.Diff(want, rowsAndTotals(out.String())); diff != "" {
		t.Errorf("rows and totals differ (-want +got):\n%s", diff)
	}
}

// rowsAndTotals returns the lines of the tables except the headers.
func rowsAndTotals(tables string) []string {
	var selected []string
	for line := range strings.Lines(tables) {
		isRow := !strings.HasPrefix(line, "#")
		isTotal := strings.Contains(line, " : ") || strings.Contains(line, "did not take")
		if isRow || isTotal {
			selected = append(selected, strings.TrimSuffix(line, "\n"))
		}
	}

	return selected
}
