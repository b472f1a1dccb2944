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

func writeSnapshots(t *testing.T, programs ...difftest.Program) string {
	t.Helper()
	dir := t.TempDir()
	for rank, p := range programs {
		file := difftest.Pickle(difftest.Snapshot(p, difftest.RunOptions{
			Seed: uint64(rank), Policy: alloc.CreationOrder,
		}), 4)
		if err := os.WriteFile(filepath.Join(dir, difftest.FileName(rank)), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func runDiff(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"diff"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestDiff(t *testing.T) {
	p := difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 300, 1, 1)
	q := slices.Insert(slices.Clone(p), 100, difftest.Request{Tensor: 1000, Size: 12345})
	dir := writeSnapshots(t, p, p, q, p)
	code, out, errs := runDiff(t, "--all-pools", dir)
	for _, want := range []string{
		"requests differ first at request 100: extra", "in the minority: rank 2",
		"alloc 12345 B", "model.py:", "this one difference (extra) explains the rest",
		"The ranks differ.",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, out, errs)
		}
	}
	if code != exitWrong {
		t.Errorf("exit code %d; want %d", code, exitWrong)
	}

	code, out, _ = runDiff(t, "--json", dir)
	var report diff.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	d := report.Sequences[0].RequestDifference
	if code != exitWrong || d == nil || d.RequestIndex != 100 {
		t.Errorf("exit code %d, difference %+v; want %d and index 100", code, d, exitWrong)
	}
}

func TestDiffOfAgreeingRanks(t *testing.T) {
	p := difftest.RandomProgram(rand.New(rand.NewPCG(1, 1)), 300, 2, 2)
	dir := writeSnapshots(t, p, p)
	if code, out, errs := runDiff(t, "--device", "0", dir); code != exitOK {
		t.Errorf("exit code %d; want 0\n%s%s", code, out, errs)
	}
	one, two := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	for rank, name := range []string{one, two} {
		if err := os.Rename(filepath.Join(dir, difftest.FileName(rank)), name); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, errs := runDiff(t, one, two); code != exitFailed || !strings.Contains(errs, "--rank") {
		t.Errorf("exit code %d, %s; want 2 and advice to use --rank", code, errs)
	}
	code, out, errs := runDiff(t, one, two, "--rank", one+"=0", "--rank", two+"=1")
	if code != exitOK {
		t.Errorf("exit code %d; want 0\n%s%s", code, out, errs)
	}
}

func TestDiffOfUnreadableFiles(t *testing.T) {
	dir := writeSnapshots(t, nil)
	for name, contents := range map[string]string{
		"code": "\x80\x04cos\nsystem\n.", "empty": "", "text": "hello",
	} {
		file := filepath.Join(dir, fmt.Sprintf("%s_1.pickle", name))
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := runDiff(t, filepath.Join(dir, difftest.FileName(0)), file)
		if code != exitFailed || !strings.Contains(errs, file) {
			t.Errorf("%s: exit code %d, %q; want 2 and the file's name", name, code, errs)
		}
	}
	empty := writeSnapshots(t, nil, nil)
	if code, _, errs := runDiff(t, empty); code != exitFailed || !strings.Contains(errs, "nothing") {
		t.Errorf("files without events: exit code %d, %s; want 2 and a message", code, errs)
	}
	if code, _, _ := runDiff(t, filepath.Join(dir, "absent")); code != exitFailed {
		t.Errorf("absent file: exit code %d; want 2", code)
	}
}
