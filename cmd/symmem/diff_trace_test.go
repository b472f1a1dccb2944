package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"symmem"
	"symmem/trace"
)

// These tests compare traces of symmem. Ranks 0 to 2 record the same 54 memory requests: 40
// allocations and 14 frees. In some tests, rank 1 makes an extra request before allocation 20.
const (
	noExtra     = -1
	extraBefore = 20 // 20 allocations and 7 frees precede the extra request, so its index is 27
)

// writeTraces runs all ranks, and returns a new folder with their traces. beforeAllocation is
// noExtra or extraBefore.
func writeTraces(t *testing.T, beforeAllocation int) string {
	t.Helper()
	folder := t.TempDir()
	writeTracesTo(t, folder, beforeAllocation)
	return folder
}

// writeTracesTo is like writeTraces, but can add to the traces of an earlier world in a folder.
func writeTracesTo(t *testing.T, folder string, beforeAllocation int) {
	t.Helper()
	const rankCount = 3
	runtimes, err := symmem.OpenLocal(t.Context(), rankCount, symmem.Options{
		Backend: "host", Check: symmem.CheckOff, CallSites: true, Trace: folder,
	})
	if err != nil {
		t.Fatal(err)
	}

	var ranks sync.WaitGroup
	for _, rt := range runtimes {
		ranks.Go(func() {
			defer rt.Close() // completes the trace
			if err := requestMemory(rt, beforeAllocation); err != nil {
				t.Error(err)
			}
		})
	}

	ranks.Wait()
}

func requestMemory(rt *symmem.Runtime, beforeAllocation int) error {
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}

	for i := range 40 {
		hasExtra := i == beforeAllocation && rt.Rank() == 1
		if hasExtra {
			const extraBytes = 7000 // arbitrary
			if _, err := p.Alloc(extraBytes); err != nil {
				return err
			}
		}

		size := int64(1000 + i) // distinct sizes
		b, err := p.Alloc(size)
		if err != nil {
			return err
		}

		isFreedAtOnce := i%3 == 0
		if isFreedAtOnce {
			if err := b.Free(); err != nil {
				return err
			}
		}
	}

	return nil
}

func TestDiffOfTraces(t *testing.T) {
	code, stdout, stderr := runDiff(t, writeTraces(t, noExtra))
	if code != exitOK || !strings.Contains(stdout, "requests agree: 54") {
		t.Errorf("equal ranks: exit code %d; want %d and 54 equal requests\n%s%s", code, exitOK,
			stdout, stderr)
	}

	code, stdout, stderr = runDiff(t, writeTraces(t, extraBefore))
	for _, want := range []string{
		"differ first at request 27: extra",
		"in the minority: rank 1",
		"alloc 7000 B",
		"diff_trace_test.go:", // the call site
		"explains the rest",
		"all 3 ranks agree up to request", // followed by its index
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, stdout, stderr)
		}
	}

	if code != exitBadResult {
		t.Errorf("ranks that differ: exit code %d; want %d", code, exitBadResult)
	}
}

// Traces of runs with different numbers of ranks cannot be compared. A missing trace is only noted.
func TestDiffOfTwoRuns(t *testing.T) {
	folder := writeTraces(t, noExtra)
	lastOfFourRanks := trace.Options{Rank: 3, Size: 4, Records: 1}
	w, err := trace.Create(folder, lastOfFourRanks)
	if err != nil {
		t.Fatal(err)
	}

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := runDiff(t, folder)
	if code != exitIncomplete || !strings.Contains(stderr, "rank3.trace of one of 4") {
		t.Errorf("traces of two runs: exit code %d, %s%s; want %d and the size of the earlier run", code,
			stdout, stderr, exitIncomplete)
	}

	for _, file := range []string{"rank3.trace", "rank1.trace"} {
		if err := os.Remove(filepath.Join(folder, file)); err != nil {
			t.Fatal(err)
		}
	}

	code, stdout, stderr = runDiff(t, folder)
	if code != exitOK || !strings.Contains(stdout, "there is no file of rank 1 (trace of symmem)") {
		t.Errorf("without rank 1: exit code %d, %s%s; want %d and a note about rank 1", code, stdout,
			stderr, exitOK)
	}
}

// Both files are of rank 1, so --rank has to give one of them another rank.
func TestDiffOfGivenRanks(t *testing.T) {
	goodFolder := writeTraces(t, noExtra)
	badFolder := writeTraces(t, extraBefore)
	good := filepath.Join(goodFolder, "rank1.trace")
	bad := filepath.Join(badFolder, "rank1.trace")
	code, _, stderr := runDiff(t, good, bad)
	if code != exitIncomplete || !strings.Contains(stderr, "--rank") {
		t.Errorf("without --rank: exit code %d, %s; want %d and advice to use --rank", code, stderr,
			exitIncomplete)
	}

	// The argument and --rank may spell the path of a file differently.
	badArgument := badFolder + "/./rank1.trace"
	badFlag := badFolder + "//rank1.trace=2"
	code, stdout, stderr := runDiff(t, good, badArgument, "--rank", badFlag)
	if code != exitBadResult || !strings.Contains(stdout, "B  rank 2 [extra]") {
		t.Errorf("with --rank: exit code %d, %s%s; want %d and a difference on rank 2", code, stdout,
			stderr, exitBadResult)
	}

	code, _, stderr = runDiff(t, good, bad, "--rank", bad+"x=2")
	const want = "rank1.tracex, which is not among the files"
	if code != exitIncomplete || !strings.Contains(stderr, want) {
		t.Errorf("--rank of an unknown file: exit code %d, %s; want %d and the file", code, stderr,
			exitIncomplete)
	}
}

// The ranks of world 1 agree, and those of world 2 differ. diff and report cover both worlds, and
// export covers only the first.
func TestDiffOfTwoWorlds(t *testing.T) {
	folder := t.TempDir()
	writeTracesTo(t, folder, noExtra)
	writeTracesTo(t, folder, extraBefore)
	code, stdout, stderr := runDiff(t, folder)
	const differ = "requests differ first"
	const differInWorld2 = "pool 0 of group world (world 2), ranks 0-2:\n  " + differ
	if n := strings.Count(stdout, differ); n != 1 || !strings.Contains(stdout, differInWorld2) {
		t.Errorf("diff: %d differences; want 1 in world 2\n%s%s", n, stdout, stderr)
	}

	if code != exitBadResult {
		t.Errorf("diff: exit code %d; want %d", code, exitBadResult)
	}

	archive := filepath.Join(t.TempDir(), "trace.zip")
	code, stdout, stderr = runInProcess(t, "export", "--perfetto", archive, folder)
	if code != exitOK || !strings.Contains(stdout, "world2-rank0.trace is left out") {
		t.Errorf("export: exit code %d, %s%s; want %d and a note about world 2", code, stdout, stderr,
			exitOK)
	}

	page := filepath.Join(t.TempDir(), "report.html")
	if code, stdout, stderr := runReport(t, "-o", page, folder); code != exitBadResult {
		t.Errorf("report: exit code %d, %s%s; want %d", code, stdout, stderr, exitBadResult)
	}
}
