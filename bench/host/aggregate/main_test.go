package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/bench/results"
)

func TestRowsContainOutOfPlaceResults(t *testing.T) {
	report := `{"bench":"collective","results":[
		{"name":"all_reduce","params":{"bytes":67108864,"ranks":2,"in_place":false},
		 "ns_per_op":1500,"p10_ns":1000,"p90_ns":2500},
		{"name":"all_reduce","params":{"bytes":8,"ranks":2,"in_place":true},"ns_per_op":7}]}`
	var out strings.Builder
	if err := run([]string{"rows", "ours"}, strings.NewReader(report), &out); err != nil {
		t.Fatal(err)
	}

	if want := "ours,2,all_reduce,67108864,1.5000,1.0000,2.5000\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

// exampleRows has the columns label, ranks, operation, bytes, median in us, two unused percentiles,
// and the round-trip times in ns between two processors before and after the run. Below 200 ns, the
// processors are near. The row with 105 and 460 is dropped, because they did not stay near. limit
// is a C program without checks, not a peer.
const exampleRows = `symmem,2,all_reduce,8,0.5,0,0,105,110
symmem,2,all_reduce,8,0.3,0,0,105,110
symmem,2,all_reduce,8,0.4,0,0,105,110
symmem,2,all_reduce,8,9,0,0,105,460
limit,2,all_reduce,8,0.2,0,0,105,110
# gloo: not-installed
slow,2,all_reduce,8,4,0,0,105,110
fast,2,all_reduce,8,0.8,0,0,105,110
fast,2,all_reduce,8,3,0,0,260,300
`

// A cell has the median and number of launches.
func TestTableComparesMediansWithBestPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.csv")
	if err := os.WriteFile(path, []byte(exampleRows), 0o600); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	if err := run([]string{"table", path}, nil, &out); err != nil {
		t.Fatal(err)
	}

	for _, line := range []string{
		"### all_reduce, 2 ranks, near: median in us (launches)",
		"| bytes | symmem | limit | fast | slow | best peer | its time over ours |" +
			" the limit's over ours |",
		"| 8 | 0.4 (3) | 0.2 (1) | 0.8 (1) | 4 (1) | fast | 2.00 | 0.50 |",
		"### all_reduce, 2 ranks, far: median in us (launches)",
		"| 8 | - | - | 3 (1) | fast | | |",
		"Dropped rows: 1,",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("the output lacks the line %q:\n%s", line, out.String())
		}
	}
}

func TestResultFilesHaveTablesAndOrigin(t *testing.T) {
	const machine = "two processors"
	folder := t.TempDir()
	rows := filepath.Join(folder, "rows.csv")
	if err := os.WriteFile(rows, []byte(exampleRows), 0o600); err != nil {
		t.Fatal(err)
	}

	command := []string{"results", rows, folder}
	if err := run(command, nil, nil); err == nil {
		t.Error("results without MACHINE returned no error")
	}

	t.Setenv("MACHINE", machine)
	t.Setenv("DATE", "2026-11-20")
	if err := run(command, nil, nil); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(filepath.Join(folder, "host-all-reduce-2-near.json"))
	if err != nil {
		t.Fatal(err)
	}

	r, err := results.Read(text)
	if err != nil {
		t.Fatal(err)
	}

	if got := r.Runs[0].Machine; got != machine {
		t.Errorf("got machine %q, want %q", got, machine)
	}

	const symmemColumn = 1 // after the bytes
	const wantCell = "0.4 (3)"
	if got := r.Rows[0][symmemColumn]; got != wantCell {
		t.Errorf("got %v as the time of symmem, want its median and launches, %q", got, wantCell)
	}
}

func TestInvalidInputIsRejected(t *testing.T) {
	if err := run([]string{"rows"}, nil, nil); !errors.Is(err, errUsage) {
		t.Errorf("rows without a label returned %v, want errUsage", err)
	}

	if err := run([]string{"rows", "x"}, strings.NewReader("{"), nil); err == nil {
		t.Error("rows accepted a truncated report")
	}

	for _, text := range []string{
		"a,b\n",                                  // too few columns
		"ours,2,all_reduce,8,fast,0,0,105,110\n", // a median that is not a number
	} {
		if _, err := readRows(strings.NewReader(text)); err == nil {
			t.Errorf("readRows(%q) returned no error", text)
		}
	}
}
