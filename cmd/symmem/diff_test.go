package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/internal/alloc"
)

// writeSnapshots writes the memory snapshot of each rank's program to a new folder.
func writeSnapshots(t *testing.T, programs ...difftest.Program) string {
	t.Helper()
	const pickleProtocol = 4
	dir := t.TempDir()
	for rank, p := range programs {
		snapshot := difftest.Snapshot(p, difftest.RunOptions{
			Seed: uint64(rank), Policy: alloc.CreationOrder,
		})
		file := difftest.Pickle(snapshot, pickleProtocol)
		if err := os.WriteFile(filepath.Join(dir, difftest.FileName(rank)), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runDiff(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	code = run(t.Context(), append([]string{"diff"}, args...), strings.NewReader(""), &outBuffer,
		&errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

// randomProgram returns the same program of 300 requests in every call.
func randomProgram(pools, streams int) difftest.Program {
	return difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 300, pools, streams)
}

func TestDiff(t *testing.T) {
	usual := randomProgram(1, 1)
	deviant := slices.Insert(slices.Clone(usual), 100, difftest.Request{Tensor: 1000, Size: 12345})
	dir := writeSnapshots(t, usual, usual, deviant, usual)
	code, stdout, stderr := runDiff(t, "--all-pools", dir)
	for _, want := range []string{
		"requests differ first at request 100: extra", "in the minority: rank 2",
		"alloc 12345 B", "model.py:", "this one difference (extra) explains the rest",
		"The ranks differ.",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, stdout, stderr)
		}
	}
	if code != exitWrong {
		t.Errorf("exit code %d; want %d", code, exitWrong)
	}

	code, stdout, _ = runDiff(t, "--json", dir)
	var report diff.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	d := report.Sequences[0].RequestDifference
	if code != exitWrong || d == nil || d.RequestIndex != 100 {
		t.Errorf("--json: exit code %d, difference %+v; want %d and index 100", code, d, exitWrong)
	}
}

func TestDiffOfAgreeingRanks(t *testing.T) {
	p := randomProgram(2, 2)
	dir := writeSnapshots(t, p, p)
	if code, stdout, stderr := runDiff(t, "--device", "0", dir); code != exitOK {
		t.Errorf("folder: exit code %d; want 0\n%s%s", code, stdout, stderr)
	}
	// The new names do not contain the rank.
	one, two := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	for rank, name := range []string{one, two} {
		if err := os.Rename(filepath.Join(dir, difftest.FileName(rank)), name); err != nil {
			t.Fatal(err)
		}
	}
	code, _, stderr := runDiff(t, one, two)
	if code != exitFailed || !strings.Contains(stderr, "--rank") {
		t.Errorf("without --rank: exit code %d, %s; want 2 and advice to use --rank", code, stderr)
	}
	code, stdout, stderr := runDiff(t, one, two, "--rank", one+"=0", "--rank", two+"=1")
	if code != exitOK {
		t.Errorf("with --rank: exit code %d; want 0\n%s%s", code, stdout, stderr)
	}
}

func TestDiffOfUnreadableFiles(t *testing.T) {
	dir := writeSnapshots(t, nil)
	for name, contents := range map[string]string{
		"code":  "\x80\x04cos\nsystem\n.", // a pickle that refers to os.system
		"empty": "",
		"text":  "hello",
	} {
		file := filepath.Join(dir, fmt.Sprintf("%s_1.pickle", name))
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := runDiff(t, filepath.Join(dir, difftest.FileName(0)), file)
		if code != exitFailed || !strings.Contains(stderr, file) {
			t.Errorf("%s: exit code %d, %q; want 2 and the file's name", name, code, stderr)
		}
	}
	empty := writeSnapshots(t, nil, nil)
	code, _, stderr := runDiff(t, empty)
	if code != exitFailed || !strings.Contains(stderr, "nothing") {
		t.Errorf("files without events: exit code %d, %s; want 2 and a message", code, stderr)
	}
	if code, _, _ := runDiff(t, filepath.Join(dir, "absent")); code != exitFailed {
		t.Errorf("absent file: exit code %d; want 2", code)
	}
}
