package main

import (
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

// These tests cover symmem diff, which compares memory snapshots of PyTorch. A snapshot lists the
// memory requests of a rank. For example, all ranks execute the same program of 300 requests,
// except rank 2: it makes an extra request for 12345 bytes at index 100. The command reports this
// request, and exits with the code exitWrong.

// runDiff runs symmem diff in this process, and returns its exit code and output.
func runDiff(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"diff"}, args...)...)
}

// writeSnapshots makes ranks 0, 1 and so on execute programs, and writes a snapshot of each rank to
// a new folder, which it returns.
func writeSnapshots(t *testing.T, programs ...difftest.Program) string {
	t.Helper()
	const pickleProtocol = 4
	folder := t.TempDir()
	for rank, p := range programs {
		snapshot := difftest.Snapshot(p, difftest.RunOptions{
			Seed: uint64(rank), Policy: alloc.CreationOrder,
		})
		contents := difftest.Pickle(snapshot, pickleProtocol)
		file := filepath.Join(folder, difftest.FileName(rank))
		if err := os.WriteFile(file, contents, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return folder
}

// randomProgram returns a program of 300 random requests, which are the same in every call.
func randomProgram(pools, streams int) difftest.Program {
	const seed1 = 1
	const seed2 = 1
	const requests = 300
	return difftest.RandomProgram(rand.New(rand.NewPCG(seed1, seed2)), requests, pools, streams)
}

// usualProgram returns the randomProgram with one pool and one stream.
func usualProgram() difftest.Program {
	const pools = 1
	const streams = 1
	return randomProgram(pools, streams)
}

// programWithExtra returns the usualProgram with an extra request for 12345 bytes at index 100.
func programWithExtra() difftest.Program {
	const unusedTensor = 1000
	extra := difftest.Request{Tensor: unusedTensor, Size: 12345}
	return slices.Insert(usualProgram(), 100, extra)
}

// TestDiff compares four ranks, of which rank 2 makes an extra request. The report, as text and as
// JSON, must show this request.
func TestDiff(t *testing.T) {
	usual := usualProgram()
	folder := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	code, stdout, stderr := runDiff(t, "--all-pools", folder)
	for _, want := range []string{
		"requests differ first at request 100: extra",
		"in the minority: rank 2",
		"alloc 12345 B",
		"model.py:", // followed by the line of the program that made the request
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

	code, stdout, _ = runDiff(t, "--json", folder)
	var report diff.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}

	d := report.Sequences[0].RequestDifference
	if code != exitWrong || d == nil || d.RequestIndex != 100 {
		t.Errorf("--json: exit code %d, difference %+v; want %d and index 100", code, d, exitWrong)
	}
}

// TestDiffOfAgreeingRanks compares ranks 0 and 1, which execute the same program. The snapshots are
// given as a folder or as files.
func TestDiffOfAgreeingRanks(t *testing.T) {
	const pools = 2
	const streams = 2
	p := randomProgram(pools, streams)
	folder := writeSnapshots(t, p, p)
	if code, stdout, stderr := runDiff(t, "--device", "0", folder); code != exitOK {
		t.Errorf("folder: exit code %d; want %d\n%s%s", code, exitOK, stdout, stderr)
	}

	// If the name of a file does not contain the rank, the flag --rank is needed.
	first := filepath.Join(folder, "first")
	second := filepath.Join(folder, "second")
	for rank, name := range []string{first, second} {
		if err := os.Rename(filepath.Join(folder, difftest.FileName(rank)), name); err != nil {
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

// TestDiffOfUnreadableFiles checks that the command fails if a file cannot be read, does not exist
// or has no requests. If it cannot be read, the error must name it.
func TestDiffOfUnreadableFiles(t *testing.T) {
	emptyProgram := difftest.Program{}
	folder := writeSnapshots(t, emptyProgram)
	readable := filepath.Join(folder, difftest.FileName(0))
	for name, contents := range map[string]string{
		"code":  "\x80\x04cos\nsystem\n.", // a pickle that refers to os.system
		"empty": "",
		"text":  "hello",
	} {
		file := filepath.Join(folder, fmt.Sprintf("%s_1.pickle", name)) // the file of rank 1
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}

		code, _, stderr := runDiff(t, readable, file)
		if code != exitFailed || !strings.Contains(stderr, file) {
			t.Errorf("%s: exit code %d, %q; want %d and the file's name", name, code, stderr, exitFailed)
		}
	}

	withoutRequests := writeSnapshots(t, emptyProgram, emptyProgram)
	code, _, stderr := runDiff(t, withoutRequests)
	if code != exitFailed || !strings.Contains(stderr, "nothing") {
		t.Errorf("files without requests: exit code %d, %s; want %d and a message", code, stderr,
			exitFailed)
	}

	if code, _, _ := runDiff(t, filepath.Join(folder, "absent")); code != exitFailed {
		t.Errorf("absent file: exit code %d; want %d", code, exitFailed)
	}
}
