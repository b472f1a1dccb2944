package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// If this test fails, run the command without flags to regenerate the pages.
func TestPagesMatchResultFiles(t *testing.T) {
	if err := checkPages(filepath.Join("..", "..", "docs", "measurements")); err != nil {
		t.Error(err)
	}
}

// result is a valid result file with all types of cells.
const result = `{"runs": [{"machine": "m", "date": "2026-11-20"}], "columns": ["a", "b"],
	"rows": [[1.50, "x|y"], [[1, 2.0], null]]}`

// createFolder returns a folder with the given files, by path, and a subfolder results.
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
	const markers = "<!-- results/r.json -->\n<!-- end -->\n"
	changedResult := func(part, replacement string) map[string]string {
		return map[string]string{"results/r.json": strings.Replace(result, part, replacement, 1)}
	}
	for _, c := range []struct {
		files map[string]string // by path
		want  string            // part of the error
	}{
		{map[string]string{"p.md": markers}, "missing result file results/r.json"},
		{map[string]string{"results/r.json": `{"when": 1}`}, "unknown field \"when\""},
		{changedResult(`"machine": "m", `, ""), "run 0 has no machine"},
		{changedResult(`"a", `, ""), "row 0 has 2 cells, but the table has 1 columns"},
		{changedResult("null", "{}"), "a number, a string, null or a list of"},
		{map[string]string{"results/r.json": "{}"}, "must not be empty"},
		{
			map[string]string{"p.md": markers, "results/r.json": result},
			"p.md differs from its result files",
		},
	} {
		err := checkPages(createFolder(t, c.files))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("checkPages = %v with files %q, want an error with %q", err, c.files, c.want)
		}
	}
}

func TestAddWritesResultFile(t *testing.T) {
	for name, c := range map[string]struct {
		input string
		want  string // part of the result file
	}{
		"Go benchmarks": {
			input: "goos: linux\nBenchmarkAlloc/hot-2   \t 100\t 35.10 ns/op\t 0 allocs/op\nPASS\n",
			want: `
  "columns": ["benchmark","ns/op","allocs/op"],
  "rows": [
    ["Alloc/hot",35.10,0]
`,
		},
		"a report": {
			input: `{"bench":"collective","results":[{"name":"all_reduce","params":{"bytes":67108864},
		"ns_per_op":1500.5,"p10_ns":1000,"p90_ns":2500,"baseline":"plain","baseline_ns_per_op":3001,
		"ratio":2}]}`,
			want: `
  "columns": ["name","bytes","ns","p10 ns","p90 ns","plain, ns","ratio"],
  "rows": [
    ["all_reduce",67108864,1500.5,1000,2500,3001,2.00]
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := createFolder(t, nil)
			arguments := []string{
				"--folder", folder, "add", "n", "--machine", "m", "--date", "2026-11-20",
			}
			if err := run(arguments, strings.NewReader(c.input)); err != nil {
				t.Fatal(err)
			}

			text, err := os.ReadFile(filepath.Join(folder, "results", "n.json"))
			if err != nil {
				t.Fatal(err)
			}

			if !strings.Contains(string(text), c.want) {
				t.Errorf("got\n%s\nwant a file that contains\n%s", text, c.want)
			}
		})
	}
}

func TestAddRejectsInvalidInput(t *testing.T) {
	folder := createFolder(t, nil)
	origin := []string{"--machine", "m", "--date", "2026-11-20"}
	for name, c := range map[string]struct {
		input   string
		options []string
	}{
		"no benchmark":       {"PASS\n", origin},
		"no machine":         {"BenchmarkA 1 2 x", []string{"--date", "2026-11-20"}},
		"a text as a number": {"BenchmarkA 1 x 2", origin},
		"a truncated report": {"{", origin},
	} {
		arguments := slices.Concat([]string{"--folder", folder, "add", "n"}, c.options)
		if err := run(arguments, strings.NewReader(c.input)); err == nil {
			t.Errorf("%s: add %q accepted the input %q", name, c.options, c.input)
		}
	}
}
