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

// These tests cover symmem report, which compares snapshots like symmem diff, and writes a web page
// about the result. For example, rank 2 of four makes an extra request for 12345 bytes, which the
// page shows. The flag -o names the file of the page.

const (
	beginOfPage = "<!doctype html>"
	endOfPage   = "</html>\n"
)

// runReport runs symmem report in this process, and returns its exit code and output.
func runReport(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"report"}, args...)...)
}

// smallProgram returns a program of 30 random requests, which are the same in every call.
func smallProgram() difftest.Program {
	const seed1 = 1
	const seed2 = 1
	const requests = 30
	const pools = 1
	const streams = 1
	return difftest.RandomProgram(rand.New(rand.NewPCG(seed1, seed2)), requests, pools, streams)
}

// TestReport writes pages about four ranks, of which rank 2 makes an extra request. A page can go
// to a file, to the same file again, or with "-" to standard output.
func TestReport(t *testing.T) {
	usual := usualProgram()
	folder := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	file := filepath.Join(folder, "report.html")
	for range 2 { // the second page replaces the first, which is not taken for a snapshot
		code, stdout, stderr := runReport(t, "--all-pools", folder, "-o", file)
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

	remaining, err := filepath.Glob(filepath.Join(folder, ".report-*"))
	if err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}

	code, stdout, _ := runReport(t, folder, "-o", "-")
	isPage := strings.HasPrefix(stdout, beginOfPage) && strings.HasSuffix(stdout, endOfPage)
	if code != exitWrong || !isPage {
		t.Errorf("report -o - = %d, %.40q...; want %d and only a page", code, stdout, exitWrong)
	}
}

// TestReportOfOneRank checks that the command succeeds for a single rank, and says that there is
// nothing to compare.
func TestReportOfOneRank(t *testing.T) {
	folder := writeSnapshots(t, smallProgram())
	code, stdout, stderr := runReport(t, folder, "-o", filepath.Join(folder, "report.html"))
	if code != exitOK || !strings.Contains(stdout, "nothing to compare") {
		t.Errorf("report of one file = %d, %q, %q; want %d and a note that nothing was compared",
			code, stdout, stderr, exitOK)
	}
}

// TestReportErrors checks that the command fails if it cannot read its inputs, or if the output
// file exists and is not a page. It must not change this file.
func TestReportErrors(t *testing.T) {
	folder := writeSnapshots(t, smallProgram(), smallProgram())
	input := filepath.Join(folder, difftest.FileName(0))
	absent := filepath.Join(folder, "absent")
	notes := filepath.Join(t.TempDir(), "notes.txt") // a file of the user
	const contents = "notes"
	if err := os.WriteFile(notes, []byte(contents), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		args []string
		want string // part of standard error
	}{
		{args: []string{input, "-o", input}, want: "is an input"},
		{args: []string{folder, "-o", notes}, want: "is not a page"},
		{args: []string{folder, "-o", folder}, want: "not a regular file"},
		{args: []string{folder, "-o", filepath.Join(absent, "report.html")}, want: "no such file"},
		{args: []string{absent}, want: "no such file"},
		{args: []string{notes}, want: "notes.txt"},
		{args: []string{folder, "--rank", "x"}, want: "is not FILE=N"},
		{args: []string{}, want: "requires at least 1 arg"},
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
