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

// These tests cover symmem diff for traces of symmem, files in which ranks have recorded their
// requests for memory. In all tests, ranks 0 to 2 make the same 54 requests. In some, rank 1 makes
// an extra request for 7000 bytes as its request 27, which the command reports.
//
// The ranks of a run form a world. A process can open several worlds, one after the other.

// Arguments of writeTraces. Rank 1 makes the extra request before its allocation with this index.
const (
	noExtra     = -1 // no extra request
	extraBefore = 20 // 20 allocations and 7 frees precede the request, so its index is 27
)

// writeTraces opens a world in which rank 1 makes the extra request before its allocation number
// extra. It returns the folder of the traces.
func writeTraces(t *testing.T, extra int) string {
	t.Helper()
	folder := t.TempDir()
	writeTracesTo(t, folder, extra)
	return folder
}

// writeTracesTo is like writeTraces for a given folder, which may contain traces of an earlier
// world.
func writeTracesTo(t *testing.T, folder string, extra int) {
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
			if err := requestMemory(rt, extra); err != nil {
				t.Error(err)
			}
		})
	}

	ranks.Wait()
}

// requestMemory makes the requests of a rank: 40 allocations, and a free of the blocks 0, 3, 6 and
// so on, directly after their allocation. These are 54 requests without the extra request.
func requestMemory(rt *symmem.Runtime, extra int) error {
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}

	for i := range 40 {
		hasExtra := i == extra && rt.Rank() == 1
		if hasExtra {
			if _, err := p.Alloc(7000); err != nil {
				return err
			}
		}

		b, err := p.Alloc(int64(1000 + i))
		if err != nil {
			return err
		}

		isFreed := i%3 == 0
		if isFreed {
			if err := b.Free(); err != nil {
				return err
			}
		}
	}

	return nil
}

// TestDiffOfTraces checks that ranks with the same requests agree, and that an extra request is
// reported with its call site.
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
		"all 3 ranks agree up to request",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, stdout, stderr)
		}
	}

	if code != exitWrong {
		t.Errorf("ranks that differ: exit code %d; want %d", code, exitWrong)
	}
}

// TestDiffOfTwoRuns checks that the command fails if the folder also contains the trace of rank 3,
// which an earlier run of four ranks left. Without this file, it compares the ranks. If the trace
// of rank 1 is missing, there is a note.
func TestDiffOfTwoRuns(t *testing.T) {
	folder := writeTraces(t, noExtra)
	w, err := trace.Create(folder, trace.Options{Rank: 3, Size: 4, Records: 1})
	if err != nil {
		t.Fatal(err)
	}

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := runDiff(t, folder)
	if code != exitFailed || !strings.Contains(stderr, "rank3.trace of one of 4") {
		t.Errorf("traces of two runs: exit code %d, %s%s; want %d and the size of the earlier run", code,
			stdout, stderr, exitFailed)
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

// TestDiffOfGivenRanks compares the traces of rank 1 in two runs, one of them with the extra
// request. One file must get another rank by the flag --rank, because both are of rank 1.
func TestDiffOfGivenRanks(t *testing.T) {
	goodFolder := writeTraces(t, noExtra)
	badFolder := writeTraces(t, extraBefore)
	good := filepath.Join(goodFolder, "rank1.trace")
	bad := filepath.Join(badFolder, "rank1.trace")
	code, _, stderr := runDiff(t, good, bad)
	if code != exitFailed || !strings.Contains(stderr, "--rank") {
		t.Errorf("without --rank: exit code %d, %s; want %d and advice to use --rank", code, stderr,
			exitFailed)
	}

	// Two spellings of a path name the same file.
	badArgument := badFolder + "/./rank1.trace"
	badFlag := badFolder + "//rank1.trace=2"
	code, stdout, stderr := runDiff(t, good, badArgument, "--rank", badFlag)
	if code != exitWrong || !strings.Contains(stdout, "B  rank 2 [extra]") {
		t.Errorf("with --rank: exit code %d, %s%s; want %d and a difference on rank 2", code, stdout,
			stderr, exitWrong)
	}

	code, _, stderr = runDiff(t, good, bad, "--rank", bad+"x=2")
	if code != exitFailed || !strings.Contains(stderr, "rank1.tracex, which is not among the files") {
		t.Errorf("--rank of an unknown file: exit code %d, %s; want %d and the file", code, stderr,
			exitFailed)
	}
}

// TestDiffOfTwoWorlds passes the traces of two worlds to the subcommands diff, export and report.
// The ranks differ only in world 2. export leaves out its traces.
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

	if code != exitWrong {
		t.Errorf("diff: exit code %d; want %d", code, exitWrong)
	}

	archive := filepath.Join(t.TempDir(), "trace.zip")
	code, stdout, stderr = runInProcess(t, "export", "--perfetto", archive, folder)
	if code != exitOK || !strings.Contains(stdout, "world2-rank0.trace is left out") {
		t.Errorf("export: exit code %d, %s%s; want %d and a note about world 2", code, stdout, stderr,
			exitOK)
	}

	page := filepath.Join(t.TempDir(), "report.html")
	if code, stdout, stderr := runReport(t, "-o", page, folder); code != exitWrong {
		t.Errorf("report: exit code %d, %s%s; want %d", code, stdout, stderr, exitWrong)
	}
}
