package main

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"symmem/bench/report"
)

func TestRatiosCompareNeighbouringRuns(t *testing.T) {
	results := newTable()
	for pair, ns := range [][2]float64{{100, 100}, {400, 200}, {90, 100}} {
		for index := range ns {
			collective := &report.Result{
				Name: "all_reduce", Params: map[string]any{"bytes": float64(8), "path": "window"},
			}
			collective.Median = ns[index]
			results.add(index, collective)
			gather := &report.Result{
				Name: "all_gather", Params: map[string]any{"bytes": float64(8)},
			}
			gather.Median = float64(10 + pair - index)
			results.add(index, gather)
		}
	}

	var out bytes.Buffer
	if err := results.write(&out); err != nil {
		t.Fatal(err)
	}

	const want = "| figure | old, ns | new, ns | old over new | 10th to 90th percentile | pairs |\n" +
		"|---|---|---|---|---|---|\n" +
		"| all_reduce, 8 bytes | 100.0 | 100.0 | 1.000 | 0.900 to 2.000 | 3 |\n" +
		"| all_gather, 8 bytes | 11.0 | 10.0 | 1.100 | 1.091 to 1.111 | 3 |\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}

	if slow := results.slowerThan(1.05); !slices.Equal(slow, []string{"all_reduce, 8 bytes: 1.000"}) {
		t.Errorf("slowerThan(1.05) = %q, want only the all_reduce", slow)
	}

	if slow := results.slowerThan(0); slow != nil {
		t.Errorf("slowerThan(0) = %q, want none", slow)
	}
}

func TestInvalidArgumentsAreRejected(t *testing.T) {
	for _, args := range [][]string{{}, {"a"}, {"-pairs", "0", "a", "b"}, {"-sizes"}} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("parse(%q) returned no error", args)
		}
	}
}
