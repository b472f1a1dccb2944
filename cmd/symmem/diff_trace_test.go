package main

import (
	"strings"
	"sync"
	"testing"

	"symmem"
)

// traceRanks makes three ranks run the same requests and write traces. Rank 1 makes an additional
// request before request number odd, unless odd is negative.
func traceRanks(t *testing.T, odd int) string {
	t.Helper()
	folder := t.TempDir()
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
			if err := requestMemory(rt, odd); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	return folder
}

// requestMemory allocates and frees buffers.
func requestMemory(rt *symmem.Runtime, odd int) error {
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}
	for i := range 40 {
		if i == odd && rt.Rank() == 1 {
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
	code, out, errs := runDiff(t, traceRanks(t, -1))
	if code != exitOK || !strings.Contains(out, "requests agree: 54") {
		t.Errorf("exit code %d; want 0 and 54 equal requests\n%s%s", code, out, errs)
	}
	code, out, errs = runDiff(t, traceRanks(t, 20))
	for _, want := range []string{
		"differ first at request 27: extra", "in the minority: rank 1", "alloc 7000 B",
		"diff_trace_test.go:", "explains the rest", "all 3 ranks agree up to request",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s%s", want, out, errs)
		}
	}
	if code != exitWrong {
		t.Errorf("exit code %d; want %d", code, exitWrong)
	}
}
