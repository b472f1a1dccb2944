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

// writeTraces makes three ranks perform the same requests, and returns the folder of their traces.
// If extra is not negative, rank 1 makes an additional request before request number extra.
func writeTraces(t *testing.T, extra int) string {
	t.Helper()
	folder := t.TempDir()
	writeTracesTo(t, folder, extra)
	return folder
}

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
			defer rt.Close()
			if err := requestMemory(rt, extra); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
}

func requestMemory(rt *symmem.Runtime, extra int) error {
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}
	for i := range 40 {
		if i == extra && rt.Rank() == 1 {
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

func TestDiffOfTraces(t *testing.T) {
	code, out, errs := runDiff(t, writeTraces(t, -1))
	if code != exitOK || !strings.Contains(out, "requests agree: 54") {
		t.Errorf("exit code %d; want 0 and 54 identical requests\n%s%s", code, out, errs)
	}
	code, out, errs = runDiff(t, writeTraces(t, 20))
	for _, want := range []string{
		"differ first at request 27: extra", "in the minority: rank 1", "alloc 7000 B",
		"diff_trace_test.go:", "explains the rest", "all 3 ranks agree up to request",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report does not contain %q:\n%s%s", want, out, errs)
		}
	}
	if code != exitWrong {
		t.Errorf("exit code %d; want %d", code, exitWrong)
	}
}

// TestDiffOfTwoRuns compares the traces of a run and the remains of an earlier one, which had more
// ranks.
func TestDiffOfTwoRuns(t *testing.T) {
	folder := writeTraces(t, -1)
	w, err := trace.Create(folder, trace.Options{Rank: 3, Size: 4, Records: 1})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := runDiff(t, folder)
	if code != exitFailed || !strings.Contains(errs, "rank3.trace of one of 4") {
		t.Errorf("diff: exit code %d, %s%s; want 2 and both sizes", code, out, errs)
	}
	if err := os.Remove(filepath.Join(folder, "rank3.trace")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "rank1.trace")); err != nil {
		t.Fatal(err)
	}
	code, out, errs = runDiff(t, folder)
	if code != exitOK || !strings.Contains(out, "there is no file of rank 1 (trace of symmem)") {
		t.Errorf("diff: exit code %d, %s%s; want 0 and a note about rank 1", code, out, errs)
	}
}

// TestDiffOfGivenRanks compares the traces of one rank in two runs.
func TestDiffOfGivenRanks(t *testing.T) {
	good, bad := writeTraces(t, -1), writeTraces(t, 20)
	a, b := filepath.Join(good, "rank1.trace"), filepath.Join(bad, "rank1.trace")
	if code, _, errs := runDiff(t, a, b); code != exitFailed || !strings.Contains(errs, "--rank") {
		t.Errorf("diff: exit code %d, %s; want 2 and advice to use --rank", code, errs)
	}
	code, out, errs := runDiff(t, a, bad+"/./rank1.trace", "--rank", bad+"//rank1.trace=2")
	if code != exitWrong || !strings.Contains(out, "B  rank 2 [extra]") {
		t.Errorf("diff: exit code %d, %s%s; want 1 and a difference on rank 2", code, out, errs)
	}
	code, _, errs = runDiff(t, a, b, "--rank", b+"x=2")
	if code != exitFailed || !strings.Contains(errs, "rank1.tracex, which is not among the files") {
		t.Errorf("diff: exit code %d, %s; want 2 and the unknown file", code, errs)
	}
}

// TestDiffOfTwoWorlds compares the traces of processes that opened two worlds. The ranks differ
// only in the second world.
func TestDiffOfTwoWorlds(t *testing.T) {
	folder := t.TempDir()
	writeTracesTo(t, folder, -1)
	writeTracesTo(t, folder, 20)
	code, out, stderr := runDiff(t, folder)
	if code != exitWrong || strings.Count(out, "requests differ first") != 1 ||
		!strings.Contains(out, "pool 0 of group world (world 2), ranks 0-2:\n  requests differ first") {
		t.Errorf("diff: exit code %d, %s%s; want 1 and a difference in world 2", code, out, stderr)
	}
	archive := filepath.Join(t.TempDir(), "trace.zip")
	var output, errs bytes.Buffer
	code = run(t.Context(), []string{"export", "--perfetto", archive, folder},
		strings.NewReader(""), &output, &errs)
	text := output.String()
	if code != exitOK || !strings.Contains(text, "world2-rank0.trace is left out") {
		t.Errorf("export: exit code %d, %s%s; want 0 and a note about world 2", code, text, &errs)
	}
	page := filepath.Join(t.TempDir(), "report.html")
	if code, out, stderr := runReport(t, "-o", page, folder); code != exitWrong {
		t.Errorf("report: exit code %d, %s%s; want 1", code, out, stderr)
	}
}
