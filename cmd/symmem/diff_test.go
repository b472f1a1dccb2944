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

// writeSnapshots writes PyTorch's memory snapshot of each rank's program to a new folder, which it
// returns. The programs are by rank.
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

// runDiff runs the subcommand diff in this process, and returns its exit code and output.
func runDiff(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	args = append([]string{"diff"}, args...)
	noInput := strings.NewReader("")
	code = run(t.Context(), args, noInput, &outBuffer, &errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

// randomProgram returns a program of 300 requests. It is the same in every call.
func randomProgram(pools, streams int) difftest.Program {
	const seed1, seed2, requests = 1, 1, 300
	return difftest.RandomProgram(rand.New(rand.NewPCG(seed1, seed2)), requests, pools, streams)
}

// usualProgram returns the randomProgram with one pool and one stream.
func usualProgram() difftest.Program {
	const pools, streams = 1, 1
	return randomProgram(pools, streams)
}

// programWithExtra returns the usualProgram with an extra request of 12345 bytes at index 100.
func programWithExtra() difftest.Program {
	const unusedTensor = 1000
	extra := difftest.Request{Tensor: unusedTensor, Size: 12345}
	return slices.Insert(usualProgram(), 100, extra)
}

// TestDiff compares the snapshots of four ranks. Rank 2 makes an extra request.
func TestDiff(t *testing.T) {
	usual := usualProgram()
	dir := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	code, stdout, stderr := runDiff(t, "--all-pools", dir)
	for _, want := range []string{
		"requests differ first at request 100: extra",
		"in the minority: rank 2",
		"alloc 12345 B",
		"model.py:", // the line of the request
		"this one difference (extra) explains the rest",
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

// TestDiffOfAgreeingRanks compares the same program on two ranks, given as a folder and as files.
// The flag --rank gives a file its rank if the name does not contain it.
func TestDiffOfAgreeingRanks(t *testing.T) {
	const pools, streams = 2, 2
	p := randomProgram(pools, streams)
	dir := writeSnapshots(t, p, p)
	if code, stdout, stderr := runDiff(t, "--device", "0", dir); code != exitOK {
		t.Errorf("folder: exit code %d; want %d\n%s%s", code, exitOK, stdout, stderr)
	}

	// Rename the files, so that the names do not contain the rank.
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for rank, name := range []string{first, second} {
		if err := os.Rename(filepath.Join(dir, difftest.FileName(rank)), name); err != nil {
			t.Fatal(err)
		}
	}

	code, _, stderr := runDiff(t, first, second)
	if code != exitFailed || !strings.Contains(stderr, "--rank") {
		t.Errorf("without --rank: exit code %d, %s; want %d and advice to use --rank", code, stderr,
			exitFailed)
	}

	code, stdout, stderr := runDiff(t, first, second, "--rank", first+"=0", "--rank", second+"=1")
	if code != exitOK {
		t.Errorf("with --rank: exit code %d; want %d\n%s%s", code, exitOK, stdout, stderr)
	}
}

// TestDiffOfUnreadableFiles checks that the command fails, and names the file that it cannot read.
func TestDiffOfUnreadableFiles(t *testing.T) {
	emptyProgram := difftest.Program{}
	dir := writeSnapshots(t, emptyProgram)
	readable := filepath.Join(dir, difftest.FileName(0))
	for name, contents := range map[string]string{
		"code":  "\x80\x04cos\nsystem\n.", // a pickle that refers to os.system
		"empty": "",
		"text":  "hello",
	} {
		file := filepath.Join(dir, fmt.Sprintf("%s_1.pickle", name)) // the file of rank 1
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}

		code, _, stderr := runDiff(t, readable, file)
		if code != exitFailed || !strings.Contains(stderr, file) {
			t.Errorf("%s: exit code %d, %q; want %d and the file's name", name, code, stderr, exitFailed)
		}
	}

	withoutEvents := writeSnapshots(t, emptyProgram, emptyProgram)
	code, _, stderr := runDiff(t, withoutEvents)
	if code != exitFailed || !strings.Contains(stderr, "nothing") {
		t.Errorf("files without events: exit code %d, %s; want %d and a message", code, stderr,
			exitFailed)
	}

	if code, _, _ := runDiff(t, filepath.Join(dir, "absent")); code != exitFailed {
		t.Errorf("absent file: exit code %d; want %d", code, exitFailed)
	}
}
