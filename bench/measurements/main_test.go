package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPagesMatchResultFiles(t *testing.T) {
	if err := checkPages(filepath.Join("..", "..", "docs", "measurements")); err != nil {
		t.Error(err)
	}
}

const result = `{"runs": [{"machine": "m", "date": "2026-11-20"}], "columns": ["a", "b"],
	"rows": [[1.50, "x|y"], [[1, 2.0], null]]}`

func createFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestWriteGeneratesTables(t *testing.T) {
	folder := createFolder(t, map[string]string{
		"results/r.json": result, "p.md": "before\n\n<!-- results/r.json -->\n<!-- end -->\n\nafter\n",
	})
	if err := run([]string{"--folder", folder, "--check"}, nil); err == nil {
		t.Error("--check accepted a page without its table")
	}
	for range 2 { // The second run must not change anything.
		if err := run([]string{"--folder", folder}, nil); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(folder, "p.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n\n<!-- results/r.json -->\n| a | b |\n|---|---|\n| 1.50 | x\\|y |\n" +
		"| 1 / 2.0 | |\n\n[Result file](results/r.json)\n<!-- end -->\n\nafter\n"
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if err := run([]string{"--folder", folder, "--check"}, nil); err != nil {
		t.Error(err)
	}
}

func TestCompareReportsDifferences(t *testing.T) {
	markers := "<!-- results/r.json -->\n<!-- end -->\n"
	without := func(part string) map[string]string {
		return map[string]string{"results/r.json": strings.Replace(result, part, "", 1)}
	}
	for want, files := range map[string]map[string]string{
		"missing result file results/r.json":             {"p.md": markers},
		"unknown field \"when\"":                         {"results/r.json": `{"when": 1}`},
		"run 0 has no machine":                           without(`"machine": "m", `),
		"row 0 has 2 cells, but the table has 1 columns": without(`"a", `),
		"must not be empty":                              {"results/r.json": "{}"},
		"p.md differs from its result files":             {"p.md": markers, "results/r.json": result},
		"a number, a string, null or a list of": {
			"results/r.json": strings.Replace(result, "null", "{}", 1),
		},
	} {
		err := checkPages(createFolder(t, files))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("checkPages returned %v, want an error with %q", err, want)
		}
	}
}

func TestAddWritesResultFile(t *testing.T) {
	for in, want := range map[string]string{
		"goos: linux\nBenchmarkAlloc/hot-2   \t 100\t 35.10 ns/op\t 0 allocs/op\nPASS\n": `
  "columns": ["benchmark","ns/op","allocs/op"],
  "rows": [
    ["Alloc/hot",35.10,0]
`,
		`{"bench":"collective","results":[{"name":"all_reduce","params":{"bytes":67108864},
		"ns_per_op":1500.5,"p10_ns":1000,"p90_ns":2500,"baseline":"plain","baseline_ns_per_op":3001,
		"ratio":2}]}`: `
  "columns": ["name","bytes","ns","p10 ns","p90 ns","plain, ns","ratio"],
  "rows": [
    ["all_reduce",67108864,1500.5,1000,2500,3001,2.00]
`,
	} {
		folder := createFolder(t, nil)
		arguments := []string{"--folder", folder, "add", "n", "--machine", "m", "--date", "2026-11-20"}
		if err := run(arguments, strings.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(folder, "results", "n.json"))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("error %v, got\n%s\nwant\n%s", err, text, want)
		}
	}
}

func TestAddRejectsInvalidInput(t *testing.T) {
	folder := createFolder(t, nil)
	for in, args := range map[string][]string{
		"PASS\n":           {"--machine", "m", "--date", "2026-11-20"},
		"BenchmarkA 1 2 x": {"--date", "2026-11-20"},
		"BenchmarkA 1 x 2": {"--machine", "m", "--date", "2026-11-20"},
		"{":                {"--machine", "m", "--date", "2026-11-20"},
	} {
		err := run(append([]string{"--folder", folder, "add", "n"}, args...), strings.NewReader(in))
		if err == nil {
			t.Errorf("add accepted the input %q with %q", in, args)
		}
	}
}
