package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

func TestSingleRankWorld(t *testing.T) {
	rt := openAlone(t)
	if rt.Rank() != 0 || rt.Size() != 1 || rt.World().Size() != 1 {
		t.Errorf("got rank %d of %d in a group of %d, want 0 of 1 in a group of 1", rt.Rank(),
			rt.Size(), rt.World().Size())
	}

	if source := rt.Source(); source != "options" { // of rank and size
		t.Errorf("Source() = %q, want options", source)
	}

	device, wantBackend := rt.Device(), withBackend(symmem.Options{}).Backend
	if device.Backend != wantBackend || device.Granularity <= 0 {
		t.Errorf("Device() = %+v, want the backend %s and a positive granularity", device, wantBackend)
	}

	stats := rt.Stats()
	// The pool is for scopes without a group.
	if stats.Size != 1 || len(stats.Pools) != 1 || len(stats.Groups) != 1 {
		t.Errorf("Stats() = %+v, want one rank, one pool and one group", stats)
	}

	wantLevel := rt.Check().String()
	if stats.Backend != wantBackend || stats.Check != wantLevel {
		t.Errorf("Stats() = %+v, want the backend %s and the check level %s", stats, wantBackend,
			wantLevel)
	}

	if err := symmetricSum(t.Context(), rt, rt.World()); err != nil {
		t.Error(err)
	}
}

func TestInvalidOptions(t *testing.T) {
	const unknownLevel = 17
	for _, row := range []struct {
		name    string
		options symmem.Options
	}{
		{name: "a rank outside the world", options: symmem.Options{Rank: 2, Size: 2}},
		{name: "a negative rank", options: symmem.Options{Rank: -1, Size: 2}},
		{name: "a negative size", options: symmem.Options{Size: -1}},
		{name: "a negative timeout", options: symmem.Options{Timeout: -time.Second}},
		{name: "an unknown check level", options: symmem.Options{Check: unknownLevel}},
		{name: "an unknown backend", options: symmem.Options{Size: 1, Backend: "abacus"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := symmem.Open(t.Context(), withBackend(row.options))
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("Open: got %v, want ErrInvalid", err)
			}

			hasSize := row.options.Size != 0 // OpenLocal takes the size as an argument
			if hasSize {
				return
			}

			const ranks = 1
			_, err = symmem.OpenLocal(t.Context(), ranks, withBackend(row.options))
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("OpenLocal: got %v, want ErrInvalid", err)
			}
		})
	}

	const noRanks = 0
	_, err := symmem.OpenLocal(t.Context(), noRanks, withBackend(symmem.Options{}))
	if !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("OpenLocal with 0 ranks: got %v, want ErrInvalid", err)
	}
}

// The backend in the options takes precedence over the environment variable.
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
		Rank: 0, Size: 2,
		Store:   "unix:@symmem-test-" + rand.Text(), // unique address
		Timeout: soon,
	}))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "ranks [1]") {
		t.Errorf("got %v, want DeadlineExceeded for ranks [1]", err)
	}
}

func TestHotCallsDoNotAllocate(t *testing.T) {
	rt := openAlone(t)
	ctx, world := t.Context(), rt.World()
	p, err := rt.NewPool(symmem.PoolOptions{Domain: world, FirstSegment: 2 * mib})
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
			added, err := p.Alloc(8192)
			if err != nil {
				return err
			}

			return added.Free()
		},
		"a scope without new memory": func() error {
			scope := p.Begin(world)
			return scope.End(ctx)
		},
		"IsSymmetric": func() error {
			if !world.IsSymmetric(b.Memory()) {
				return errors.New("IsSymmetric = false for a registered buffer, want true")
			}

			return nil
		},
		"AllReduce": func() error {
			const count = 2
			return world.AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		},
	} {
		// Register segments of earlier calls now, because a registration allocates.
		if err := p.Register(ctx, world); err != nil {
			t.Fatal(err)
		}

		const runs = 100
		allocs := testing.AllocsPerRun(runs, func() {
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", name, allocs)
		}
	}
}

// Some options must be the same on all ranks. If one of them differs, Open fails on all ranks.
func TestDifferentOptionsFailOpen(t *testing.T) {
	requireRanks(t, 2)
	for _, row := range []struct {
		options [2]symmem.Options // by rank
		want    string            // part of the error
	}{
		{
			options: [2]symmem.Options{{Check: symmem.CheckEvery}, {Check: symmem.CheckOff}},
			want:    "check level: rank 0: every; rank 1: off",
		},
		{
			options: [2]symmem.Options{
				{Deterministic: symmem.FormulaRankOrder}, {Deterministic: symmem.FormulaAny},
			},
			want: "formula of reductions: rank 0: ranks; rank 1: any",
		},
	} {
		store := "unix:@symmem-test-" + rand.Text()
		var opening sync.WaitGroup
		for number, o := range row.options {
			opening.Go(func() {
				o.Rank, o.Size = number, len(row.options)
				o.Store, o.Timeout = store, 10*time.Second
				rt, err := symmem.Open(t.Context(), withBackend(o))
				if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
					t.Errorf("rank %d: got %v, want ErrInvalid with %q", number, err, row.want)
				}

				if rt != nil {
					rt.Close()
				}
			})
		}

		opening.Wait()
	}
}
