package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

func TestSingleRankWorld(t *testing.T) {
	rt := openAlone(t)
	if rt.Rank() != 0 || rt.Size() != 1 || rt.World().Size() != 1 || rt.Source() != "options" {
		t.Errorf("got rank %d of %d from %q, want 0 of 1 from options", rt.Rank(), rt.Size(), rt.Source())
	}
	device, wantBackend := rt.Device(), withBackend(symmem.Options{}).Backend
	if device.Backend != wantBackend || device.Granularity <= 0 {
		t.Errorf("Device() = %+v, want the backend %s and a positive granularity", device, wantBackend)
	}
	stats := rt.Stats()
	if stats.Size != 1 || len(stats.Pools) != 1 || len(stats.Groups) != 1 {
		t.Errorf("Stats() = %+v, want one rank, one pool and one group", stats)
	}
	if level := rt.Check().String(); stats.Backend != wantBackend || stats.Check != level {
		t.Errorf("Stats() = %+v, want the backend %s and the check level %s", stats, wantBackend, level)
	}
	if err := symmetricSum(t.Context(), rt, rt.World()); err != nil {
		t.Error(err)
	}
}

func TestInvalidOptions(t *testing.T) {
	for _, row := range []struct {
		name    string
		options symmem.Options
	}{
		{"a rank outside the world", symmem.Options{Rank: 2, Size: 2}},
		{"a negative rank", symmem.Options{Rank: -1, Size: 2}},
		{"a negative size", symmem.Options{Size: -1}},
		{"a negative timeout", symmem.Options{Timeout: -time.Second}},
		{"an unknown level", symmem.Options{Check: 17}},
		{"an unknown backend", symmem.Options{Size: 1, Backend: "abacus"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := symmem.Open(t.Context(), withBackend(row.options))
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("Open: got %v, want ErrInvalid", err)
			}
			if row.options.Size != 0 {
				return // OpenLocal chooses the size
			}
			_, err = symmem.OpenLocal(t.Context(), 1, withBackend(row.options))
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("OpenLocal: got %v, want ErrInvalid", err)
			}
		})
	}
	_, err := symmem.OpenLocal(t.Context(), 0, withBackend(symmem.Options{}))
	if !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("OpenLocal with 0 ranks: got %v, want ErrInvalid", err)
	}
}

func TestBackendSelection(t *testing.T) {
	t.Setenv("SYMMEM_BACKEND", "abacus")
	rt, err := symmem.Open(t.Context(), symmem.Options{Size: 1, Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Error(err)
	}
	_, err = symmem.Open(t.Context(), symmem.Options{Size: 1})
	if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), `"abacus"`) {
		t.Errorf("got %v, want ErrInvalid for the backend abacus", err)
	}
}

func TestOpenNamesMissingRank(t *testing.T) {
	_, err := symmem.Open(t.Context(), withBackend(symmem.Options{
		Rank: 0, Size: 2, Store: "unix:@symmem-test-" + rand.Text(), Timeout: soon,
	}))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks [1]") {
		t.Errorf("got %v, want DeadlineExceeded for ranks [1]", err)
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	rt := openAlone(t)
	ctx, w := t.Context(), rt.World()
	p, err := rt.NewPool(symmem.PoolOptions{Domain: w, FirstSegment: 2 * mib})
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}
	m := b.Memory()
	for name, call := range map[string]func() error{
		"Alloc and Free": func() error {
			x, err := p.Alloc(8192)
			return errors.Join(err, x.Free())
		},
		"a scope without new memory": func() error {
			s := p.Begin(w)
			return s.End(ctx)
		},
		"IsSymmetric": func() error {
			if !w.IsSymmetric(b.Memory()) {
				return errors.New("not symmetric")
			}
			return nil
		},
		"AllReduce": func() error {
			return w.AllReduce(ctx, m, m, 2, symmem.Float32, symmem.Sum, nil)
		},
	} {
		// An earlier call may have mapped a segment that is not registered yet.
		if err := p.Register(ctx, w); err != nil {
			t.Fatal(err)
		}
		allocs := testing.AllocsPerRun(100, func() {
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
}

func TestDifferentOptionsFailOpen(t *testing.T) {
	requireRanks(t, 2)
	for want, options := range map[string][2]symmem.Options{
		"check level: rank 0: every; rank 1: off": {
			{Check: symmem.CheckEvery}, {Check: symmem.CheckOff},
		},
		"formula of reductions: rank 0: ranks; rank 1: any": {
			{Deterministic: symmem.FormulaRankOrder}, {Deterministic: symmem.FormulaAny},
		},
	} {
		store := fmt.Sprintf("unix:@symmem-differ-%d-%s", os.Getpid(), want[:5])
		var ranks sync.WaitGroup
		for number, o := range options {
			ranks.Go(func() {
				o.Rank, o.Size, o.Store, o.Timeout = number, 2, store, 10*time.Second
				rt, err := symmem.Open(t.Context(), withBackend(o))
				if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), want) {
					t.Errorf("rank %d: got %v, want ErrInvalid with %q", number, err, want)
				}
				if rt != nil {
					rt.Close()
				}
			})
		}
		ranks.Wait()
	}
}
