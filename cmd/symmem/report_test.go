package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff/difftest"
)

// runReport runs the subcommand report in this process, and returns its exit code and output.
func runReport(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	args = append([]string{"report"}, args...)
	noInput := strings.NewReader("")
	code = run(t.Context(), args, noInput, &outBuffer, &errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

// smallProgram returns a program of 30 requests. It is the same in every call.
func smallProgram() difftest.Program {
	const seed1, seed2, requests, pools, streams = 1, 1, 30, 1, 1
	return difftest.RandomProgram(rand.New(rand.NewPCG(seed1, seed2)), requests, pools, streams)
}

const beginOfPage, endOfPage = "<!doctype html>", "</html>\n"

// TestReport writes a page about four ranks, of which rank 2 makes an extra request of 12345 bytes.
// The page goes to a file and, with "-", to standard output.
func TestReport(t *testing.T) {
	usual := usualProgram()
	dir := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	file := filepath.Join(dir, "report.html")
	for range 2 { // the second page replaces the first, which is not an input
		code, stdout, stderr := runReport(t, "--all-pools", dir, "-o", file)
		const verdict = "differ first at request 100 (extra); in the minority: rank 2."
		if code != exitWrong || !strings.Contains(stdout, verdict) {
			t.Errorf("report = %d, %q, %q; want %d and %q", code, stdout, stderr, exitWrong, verdict)
		}
	}

	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.HasPrefix(page, []byte(beginOfPage)) {
		t.Errorf("the file begins with %.40q; want %q", page, beginOfPage)
	}

	if !bytes.Contains(page, []byte("alloc 12345 B")) {
		t.Error("the page does not contain the extra request")
	}

	remaining, err := filepath.Glob(filepath.Join(dir, ".report-*"))
	if err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}

	code, stdout, _ := runReport(t, dir, "-o", "-")
	isPage := strings.HasPrefix(stdout, beginOfPage) && strings.HasSuffix(stdout, endOfPage)
	if code != exitWrong || !isPage {
		t.Errorf("report -o - = %d, %.40q...; want %d and only a page", code, stdout, exitWrong)
	}
}

// TestReportOfOneRank checks that a page can be made without another rank to compare with.
func TestReportOfOneRank(t *testing.T) {
	dir := writeSnapshots(t, smallProgram())
	code, stdout, stderr := runReport(t, dir, "-o", filepath.Join(dir, "report.html"))
	if code != exitOK || !strings.Contains(stdout, "nothing to compare") {
		t.Errorf("report of one file = %d, %q, %q; want %d and a note that nothing was compared",
			code, stdout, stderr, exitOK)
	}
}

// TestReportErrors checks that the command exits with code 2 if it cannot read its inputs, or if
// the output file exists and is not a page.
func TestReportErrors(t *testing.T) {
	dir := writeSnapshots(t, smallProgram(), smallProgram())
	input := filepath.Join(dir, difftest.FileName(0))
	notes := filepath.Join(t.TempDir(), "notes.txt") // a file of the user
	const contents = "notes"
	if err := os.WriteFile(notes, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		args []string
		want string // part of standard error
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

	if text, err := os.ReadFile(notes); err != nil || string(text) != contents {
		t.Errorf("%s contains %q, %v; want the original contents, %q", notes, text, err, contents)
	}
}
