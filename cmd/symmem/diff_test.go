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

// These tests compare PyTorch memory snapshots. A snapshot lists a rank's requests: allocations and
// frees.

func runDiff(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runInProcess(t, append([]string{"diff"}, args...)...)
}

// writeSnapshots writes a snapshot of each rank to a new folder. Rank n makes the requests in
// programs[n].
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

// randomProgram returns random requests, which are the same for the same arguments.
func randomProgram(requests, pools, streams int) difftest.Program {
	rng := rand.New(rand.NewPCG(1, 1)) // arbitrary seeds
	return difftest.RandomProgram(rng, requests, pools, streams)
}

func usualProgram() difftest.Program {
	const requests, pools, streams = 300, 1, 1
	return randomProgram(requests, pools, streams)
}

const (
	extraRequestIndex = 100   // arbitrary
	extraRequestSize  = 12345 // arbitrary
)

// programWithExtra inserts an extra allocation into the usual program.
func programWithExtra() difftest.Program {
	const unusedTensor = 1000 // larger than the number of requests
	extra := difftest.Request{Tensor: unusedTensor, Size: extraRequestSize}
	return slices.Insert(usualProgram(), extraRequestIndex, extra)
}

func TestDiff(t *testing.T) {
	usual := usualProgram()
	folder := writeSnapshots(t, usual, usual, programWithExtra(), usual)
	code, stdout, stderr := runDiff(t, "--all-pools", folder)
	for _, want := range []string{
		fmt.Sprintf("requests differ first at request %d: extra", extraRequestIndex),
		"in the minority: rank 2",
		fmt.Sprintf("alloc %d B", extraRequestSize),
		"model.py:", // the call site
		"this one difference (extra) explains the rest",
		"The ranks differ.",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, stdout, stderr)
		}
	}

	if code != exitBadResult {
		t.Errorf("exit code %d; want %d", code, exitBadResult)
	}

	code, stdout, _ = runDiff(t, "--json", folder)
	var report diff.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}

	if len(report.Sequences) == 0 {
		t.Fatalf("--json prints %s; want a sequence of requests", stdout)
	}

	d := report.Sequences[0].RequestDifference
	if code != exitBadResult || d == nil || d.RequestIndex != extraRequestIndex {
		t.Errorf("--json: exit code %d, difference %+v; want %d and index %d", code, d,
			exitBadResult, extraRequestIndex)
	}
}

func TestDiffOfAgreeingRanks(t *testing.T) {
	const requests, pools, streams = 300, 2, 2
	p := randomProgram(requests, pools, streams)
	folder := writeSnapshots(t, p, p)
	if code, stdout, stderr := runDiff(t, "--device", "0", folder); code != exitOK {
		t.Errorf("folder: exit code %d; want %d\n%s%s", code, exitOK, stdout, stderr)
	}

	// File names without a rank require --rank.
	first := filepath.Join(folder, "first")
	second := filepath.Join(folder, "second")
	for rank, name := range []string{first, second} {
		if err := os.Rename(filepath.Join(folder, difftest.FileName(rank)), name); err != nil {
			t.Fatal(err)
		}
	}

	code, _, stderr := runDiff(t, first, second)
	if code != exitIncomplete || !strings.Contains(stderr, "--rank") {
		t.Errorf("without --rank: exit code %d, %s; want %d and advice to use --rank", code, stderr,
			exitIncomplete)
	}

	code, stdout, stderr := runDiff(t, first, second, "--rank", first+"=0", "--rank", second+"=1")
	if code != exitOK {
		t.Errorf("with --rank: exit code %d; want %d\n%s%s", code, exitOK, stdout, stderr)
	}
}

func TestDiffOfUnreadableFiles(t *testing.T) {
	emptyProgram := difftest.Program{}
	folder := writeSnapshots(t, emptyProgram)
	readable := filepath.Join(folder, difftest.FileName(0))
	for name, contents := range map[string]string{
		"code":  "\x80\x04cos\nsystem\n.", // a pickle of os.system
		"empty": "",
		"text":  "hello",
	} {
		file := filepath.Join(folder, name+"_1.pickle") // of rank 1
		if err := os.WriteFile(file, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}

		code, _, stderr := runDiff(t, readable, file)
		if code != exitIncomplete || !strings.Contains(stderr, file) {
			t.Errorf("%s: exit code %d, %q; want %d and the file's name", name, code, stderr, exitIncomplete)
		}
	}

	withoutRequests := writeSnapshots(t, emptyProgram, emptyProgram)
	code, _, stderr := runDiff(t, withoutRequests)
	if code != exitIncomplete || !strings.Contains(stderr, "nothing") {
		t.Errorf("files without requests: exit code %d, %s; want %d and a message", code, stderr,
			exitIncomplete)
	}

	if code, _, _ := runDiff(t, filepath.Join(folder, "absent")); code != exitIncomplete {
		t.Errorf("absent file: exit code %d; want %d", code, exitIncomplete)
	}
}
