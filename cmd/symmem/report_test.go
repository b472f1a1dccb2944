package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff/difftest"
)

func runReport(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	code = run(t.Context(), append([]string{"report"}, args...), strings.NewReader(""), &outBuffer,
		&errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

func TestReport(t *testing.T) {
	usual := randomProgram(1, 1)
	deviant := slices.Insert(slices.Clone(usual), 100, difftest.Request{Tensor: 1000, Size: 12345})
	dir := writeSnapshots(t, usual, usual, deviant, usual)
	file := filepath.Join(dir, "report.html")
	for range 2 { // the second page replaces the first, which is not an input
		code, stdout, stderr := runReport(t, "--all-pools", dir, "-o", file)
		if code != exitWrong || !strings.Contains(stdout, "differ first at request 100 (extra); "+
			"in the minority: rank 2.") {
			t.Errorf("report = %d, %q, %q; want %d and the verdict of diff", code, stdout, stderr,
				exitWrong)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(page, []byte("<!doctype html>")) ||
		!bytes.Contains(page, []byte("alloc 12345 B")) {
		t.Error("the file is not a page that contains diff's result as text")
	}
	remaining, err := filepath.Glob(filepath.Join(dir, ".report-*"))
	if err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}
	code, stdout, _ := runReport(t, dir, "-o", "-")
	if code != exitWrong || !strings.HasPrefix(stdout, "<!doctype html>") ||
		!strings.HasSuffix(stdout, "</html>\n") {
		t.Errorf("report -o - = %d, %.40q...; want %d and a page", code, stdout, exitWrong)
	}
}

func TestReportOfOneRank(t *testing.T) {
	dir := writeSnapshots(t, difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 30, 1, 1))
	code, stdout, stderr := runReport(t, dir, "-o", filepath.Join(dir, "report.html"))
	if code != exitOK || !strings.Contains(stdout, "nothing to compare") {
		t.Errorf("report of one file = %d, %q, %q; want 0 and a note that nothing was compared",
			code, stdout, stderr)
	}
}

// TestReportErrors checks that the command exits with code 2 if it cannot read its inputs, or if
// the output file exists and is not a page.
func TestReportErrors(t *testing.T) {
	p := difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 30, 1, 1)
	dir := writeSnapshots(t, p, p)
	input := filepath.Join(dir, difftest.FileName(0))
	notes := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(notes, []byte("notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{input, "-o", input}, "is an input"},
		{[]string{dir, "-o", notes}, "is not a page"},
		{[]string{dir, "-o", dir}, "not a regular file"},
		{[]string{dir, "-o", filepath.Join(dir, "absent", "report.html")}, "no such file"},
		{[]string{filepath.Join(dir, "absent")}, "no such file"},
		{[]string{notes}, "notes.txt"},
		{[]string{dir, "--rank", "x"}, "is not FILE=N"},
		{[]string{}, "requires at least 1 arg"},
	} {
		code, _, stderr := runReport(t, c.args...)
		if code != exitFailed || !strings.Contains(stderr, c.want) {
			t.Errorf("report %v = %d, %q; want %d and %q", c.args, code, stderr, exitFailed, c.want)
		}
	}
	if text, err := os.ReadFile(notes); err != nil || string(text) != "notes" {
		t.Errorf("%s contains %q, %v; want the original contents", notes, text, err)
	}
}
