package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"symmem"
	"symmem/trace"
)

// Arguments of writeTraces: the number of the allocation before which rank 1 makes an extra
// request.
const (
	noExtra     = -1 // no extra request
	extraBefore = 20 // after 20 allocations and 7 frees, so the extra request has the index 27
)

// writeTraces makes three ranks perform the same requests, and returns the folder of their traces.
// Rank 1 makes an extra request before its allocation number extra, unless extra is noExtra.
func writeTraces(t *testing.T, extra int) string {
	t.Helper()
	folder := t.TempDir()
	writeTracesTo(t, folder, extra)
	return folder
}

// writeTracesTo is writeTraces for a given folder, which may contain traces of an earlier world.
func writeTracesTo(t *testing.T, folder string, extra int) {
	t.Helper()
	runtimes, err := symmem.OpenLocal(t.Context(), 3, symmem.Options{
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

// requestMemory makes 54 requests: 40 allocations, and a free after every third of them, beginning
// with the first. Rank 1 may make an extra request.
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

		if i%3 == 0 {
			if err := b.Free(); err != nil {
				return err
			}
		}
	}

	return nil
}

// TestDiffOfTraces compares the traces of ranks that made the same requests. Then, it compares
// ranks of which one made an extra request.
func TestDiffOfTraces(t *testing.T) {
	code, stdout, stderr := runDiff(t, writeTraces(t, noExtra))
	if code != exitOK || !strings.Contains(stdout, "requests agree: 54") {
		t.Errorf("equal ranks: exit code %d; want %d and 54 identical requests\n%s%s", code, exitOK,
			stdout, stderr)
	}

	code, stdout, stderr = runDiff(t, writeTraces(t, extraBefore))
	for _, want := range []string{
		"differ first at request 27: extra", "in the minority: rank 1", "alloc 7000 B",
		"diff_trace_test.go:", "explains the rest", "all 3 ranks agree up to request",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, stdout, stderr)
		}
	}

	if code != exitWrong {
		t.Errorf("ranks that differ: exit code %d; want %d", code, exitWrong)
	}
}

// TestDiffOfTwoRuns compares the traces of a run of three ranks and, in the same folder, a trace
// that an earlier run of four ranks left. Without this file and that of rank 1, the others agree.
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

// TestDiffOfGivenRanks compares the traces of rank 1 in two runs. The flag --rank is needed to give
// one of the files another number.
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

	// The paths of the second file differ, but name the same file.
	code, stdout, stderr := runDiff(t, good, badFolder+"/./rank1.trace",
		"--rank", badFolder+"//rank1.trace=2")
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

// TestDiffOfTwoWorlds gives the traces of processes that opened two worlds to three commands. A
// world is a set of ranks. The ranks differ only in the second world.
func TestDiffOfTwoWorlds(t *testing.T) {
	folder := t.TempDir()
	writeTracesTo(t, folder, noExtra)
	writeTracesTo(t, folder, extraBefore)
	code, stdout, stderr := runDiff(t, folder)
	const differ = "requests differ first"
	const difference = "pool 0 of group world (world 2), ranks 0-2:\n  " + differ
	if n := strings.Count(stdout, differ); n != 1 || !strings.Contains(stdout, difference) {
		t.Errorf("diff: %d differences; want 1 in world 2\n%s%s", n, stdout, stderr)
	}

	if code != exitWrong {
		t.Errorf("diff: exit code %d; want %d", code, exitWrong)
	}

	archive := filepath.Join(t.TempDir(), "trace.zip")
	var outBuffer, errBuffer bytes.Buffer
	code = run(t.Context(), []string{"export", "--perfetto", archive, folder},
		strings.NewReader(""), &outBuffer, &errBuffer)
	stdout = outBuffer.String()
	if code != exitOK || !strings.Contains(stdout, "world2-rank0.trace is left out") {
		t.Errorf("export: exit code %d, %s%s; want %d and a note about world 2", code, stdout,
			&errBuffer, exitOK)
	}

	page := filepath.Join(t.TempDir(), "report.html")
	if code, stdout, stderr := runReport(t, "-o", page, folder); code != exitWrong {
		t.Errorf("report: exit code %d, %s%s; want %d", code, stdout, stderr, exitWrong)
	}
}
