package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff/difftest"
)

const (
	beginOfPage = "<!doctype html>"
	endOfPage   = "</html>\n"
)

func runReport(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"report"}, args...)...)
}

func smallProgram() difftest.Program {
	const requests, pools, streams = 30, 1, 1
	return randomProgram(requests, pools, streams)
}

func TestReport(t *testing.T) {
	usual := usualProgram()
	folder := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	file := filepath.Join(folder, "report.html")
	for range 2 { // the second run must replace the page, not read it as a snapshot
		code, stdout, stderr := runReport(t, "--all-pools", folder, "-o", file)
		verdict := fmt.Sprintf("differ first at request %d (extra); in the minority: rank 2.",
			extraRequestIndex)
		if code != exitBadResult || !strings.Contains(stdout, verdict) {
			t.Errorf("report = %d, %q, %q; want %d and %q", code, stdout, stderr, exitBadResult, verdict)
		}
	}

	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	if !bytes.HasPrefix(page, []byte(beginOfPage)) {
		t.Errorf("the file begins with %.40q; want %q", page, beginOfPage)
	}

	extraRequest := fmt.Sprintf("alloc %d B", extraRequestSize)
	if !bytes.Contains(page, []byte(extraRequest)) {
		t.Errorf("the page does not contain %q", extraRequest)
	}

	remaining, err := filepath.Glob(filepath.Join(folder, ".report-*"))
	if err != nil || len(remaining) > 0 {
		t.Errorf("temporary files remain: %v, %v", remaining, err)
	}

	code, stdout, _ := runReport(t, folder, "-o", "-")
	isPage := strings.HasPrefix(stdout, beginOfPage) && strings.HasSuffix(stdout, endOfPage)
	if code != exitBadResult || !isPage {
		t.Errorf("report -o - = %d, %.40q...; want %d and only a page", code, stdout, exitBadResult)
	}
}

func TestReportOfOneRank(t *testing.T) {
	folder := writeSnapshots(t, smallProgram())
	code, stdout, stderr := runReport(t, folder, "-o", filepath.Join(folder, "report.html"))
	if code != exitOK || !strings.Contains(stdout, "nothing to compare") {
		t.Errorf("report of one file = %d, %q, %q; want %d and a note that nothing was compared",
			code, stdout, stderr, exitOK)
	}
}

// TestReportErrors also checks that report does not overwrite a file of another kind.
func TestReportErrors(t *testing.T) {
	folder := writeSnapshots(t, smallProgram(), smallProgram())
	input := filepath.Join(folder, difftest.FileName(0))
	absent := filepath.Join(folder, "absent")
	notes := filepath.Join(t.TempDir(), "notes.txt") // the user's, not a page
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
		if code != exitIncomplete || !strings.Contains(stderr, c.want) {
			t.Errorf("report %v = %d, %q; want %d and %q", c.args, code, stderr, exitIncomplete, c.want)
		}
	}

	if text, err := os.ReadFile(notes); err != nil || string(text) != contents {
		t.Errorf("%s contains %q, %v; want the original contents, %q", notes, text, err, contents)
	}
}
