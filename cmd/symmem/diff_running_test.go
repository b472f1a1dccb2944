package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"symmem"
	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/difftest"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/load"
)

var runningPrograms = flag.Int("programs", 32,
	"TestDiffOfRunningPrograms runs this many programs with a planted difference, and as many without")

const (
	runningPools, runningStreams = 2, 3
	programsPerWorld             = 16
)

// runningProgram holds the variants of a program, one for each rank of a world.
type runningProgram struct {
	kind          string // kind of the planted difference, or ""
	variants      []difftest.Program
	differingRank int                  // the rank that differs
	options       []symmem.PoolOptions // of each rank's pools
	places        [][][]place          // by rank and pool; recorded by the ranks
}

// place is where an allocation was placed. It is zero for a free.
type place struct{ segment, offset int64 }

// TestDiffOfRunningPrograms runs random programs with traces on several ranks. In half of the
// programs, one rank differs from a random point on, and diff must find the first request or place
// that differs. In all other programs, diff must find no difference.
func TestDiffOfRunningPrograms(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	kinds := append(slices.Clone(difftest.DifferenceKinds), diff.KindPlace)
	planted := map[string]int{}
	for run := 0; run < 2**runningPrograms; {
		ranks := 2 + rng.IntN(3)
		var programs []*runningProgram
		for len(programs) < programsPerWorld && run < 2**runningPrograms {
			p := &runningProgram{}
			if run%2 == 0 {
				p.kind = kinds[run/2%len(kinds)]
			}

			if p.plant(rng, ranks) {
				programs = append(programs, p)
				run++
			}
		}

		folder := t.TempDir()
		runPrograms(t, folder, ranks, programs)
		for kind, n := range checkPrograms(t, folder, programs) {
			planted[kind] += n
		}

		if err := os.RemoveAll(folder); err != nil { // all worlds together would fill the disk
			t.Fatal(err)
		}
	}

	t.Logf("planted: %v", planted)
}

// plant creates the variants of a program. It returns false if no difference of kind p.kind can be
// planted in the program.
func (p *runningProgram) plant(rng *rand.Rand, ranks int) bool {
	common := difftest.RandomProgram(rng, 30+rng.IntN(200), runningPools, runningStreams)
	p.differingRank = rng.IntN(ranks)
	p.variants, p.places = make([]difftest.Program, ranks), make([][][]place, ranks)
	p.options = make([]symmem.PoolOptions, ranks)
	for r := range ranks {
		p.variants[r], p.places[r] = common, make([][]place, runningPools)
		p.options[r].FirstSegment = 16 << 20
	}

	switch p.kind {
	case "":
	case diff.KindPlace:
		p.options[p.differingRank].FirstSegment = 2 << (20 + rng.IntN(3))
	default:
		variant := difftest.PlantDifference(rng, common, p.kind, runningPools, runningStreams)
		if variant == nil || slices.Max(difftest.FirstDifference(common, variant, runningPools)) < 0 {
			return false // the two swapped requests are identical
		}

		p.variants[p.differingRank] = variant
	}

	return true
}

// runPrograms runs programs one after another, each in new pools.
func runPrograms(t *testing.T, folder string, ranks int, programs []*runningProgram) {
	t.Helper()
	runtimes, err := symmem.OpenLocal(t.Context(), ranks, symmem.Options{
		Backend: "host", Check: symmem.CheckOff, Trace: folder,
	})
	if err != nil {
		t.Fatal(err)
	}

	var wait sync.WaitGroup
	for _, rt := range runtimes {
		wait.Go(func() {
			defer rt.Close()
			streams := []*symmem.Stream{rt.DefaultStream()}
			for len(streams) < runningStreams {
				s, err := rt.NewStream()
				if err != nil {
					t.Error(err)
					return
				}

				streams = append(streams, s)
			}

			for i, p := range programs {
				if err := p.run(rt, streams); err != nil {
					t.Errorf("rank %d, program %d: %v", rt.Rank(), i, err)
					return
				}
			}
		})
	}

	wait.Wait()
}

func (p *runningProgram) run(rt *symmem.Runtime, streams []*symmem.Stream) error {
	o := p.options[rt.Rank()]
	o.Domain = rt.World()
	var pools []*symmem.Pool
	for range runningPools {
		pool, err := rt.NewPool(o)
		if err != nil {
			return err
		}

		pools = append(pools, pool)
	}

	live := map[int]symmem.Buffer{}
	places := p.places[rt.Rank()]
	for _, r := range p.variants[rt.Rank()] {
		placed := place{}
		if r.IsFree {
			if err := live[r.Tensor].Free(); err != nil {
				return err
			}

			delete(live, r.Tensor)
		} else {
			b, err := pools[r.Pool].AllocOn(streams[r.Stream], r.Size)
			if err != nil {
				return err
			}

			live[r.Tensor] = b
			placed = place{int64(b.Segment()), b.Offset()}
		}

		places[r.Pool] = append(places[r.Pool], placed)
	}

	var errs []error
	for _, pool := range pools { // so that the trace does not contain the frees below
		errs = append(errs, pool.Close())
	}

	for _, b := range live {
		errs = append(errs, b.Free())
	}

	return errors.Join(errs...)
}

// checkPrograms compares the traces and checks the result for each program. It counts the planted
// differences by kind.
func checkPrograms(t *testing.T, folder string, programs []*runningProgram) map[string]int {
	t.Helper()
	found := compareTraces(t, folder)
	planted := map[string]int{}
	for i, p := range programs {
		isDifferent := false
		for pool := range runningPools {
			title := fmt.Sprintf("pool %d of group world", i*runningPools+pool)
			s, ok := found[title]
			firstRequest, firstPlace := p.firstDifferences(pool)
			gotRequest, gotPlace := indexOf(s.RequestDifference), indexOf(s.PlacementDifference)
			if !ok || gotRequest != firstRequest || firstRequest < 0 && gotPlace != firstPlace {
				t.Errorf("program %d (%q), %s: first request %d, first place %d; want %d, %d", i, p.kind,
					title, gotRequest, gotPlace, firstRequest, firstPlace)
			}

			isDifferent = isDifferent || firstRequest >= 0 || firstPlace >= 0
		}

		if isDifferent {
			planted[p.kind]++
		}
	}

	return planted
}

func compareTraces(t *testing.T, folder string) map[string]diff.SequenceResult {
	t.Helper()
	sources, err := load.Find([]string{folder}, nil)
	if err != nil {
		t.Fatal(err)
	}

	histories, err := load.Files(sources, load.Options{Device: -1})
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]diff.SequenceResult{}
	for _, s := range diff.Compare(histories, diff.Options{}).Sequences {
		found[s.Title] = s
	}

	return found
}

func indexOf(d *diff.Difference) int {
	if d == nil {
		return -1
	}

	return d.RequestIndex
}

// firstDifferences returns the indexes of the first request of a pool that differs between the
// variants, and of the first allocation whose place differs. Without a difference, an index is -1.
func (p *runningProgram) firstDifferences(pool int) (request, placement int) {
	other := (p.differingRank + 1) % len(p.variants)
	a, b := p.places[p.differingRank][pool], p.places[other][pool]
	placement = -1
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			placement = i
			break
		}
	}

	requests := difftest.FirstDifference(p.variants[other], p.variants[p.differingRank], runningPools)
	return requests[pool], placement
}

// TestDiffOfPoolsOfGroups compares the ranks of two groups that make different requests in their
// pools. Each group also has a pool that only one of its ranks uses.
func TestDiffOfPoolsOfGroups(t *testing.T) {
	folder := t.TempDir()
	runtimes, err := symmem.OpenLocal(t.Context(), 4, symmem.Options{
		Backend: "host", Check: symmem.CheckOff, Trace: folder,
	})
	if err != nil {
		t.Fatal(err)
	}

	var wait sync.WaitGroup
	for _, rt := range runtimes {
		wait.Go(func() {
			defer rt.Close()
			if err := usePools(t.Context(), rt); err != nil {
				t.Error(err)
			}
		})
	}

	wait.Wait()
	var got []string
	for _, s := range compareTraces(t, folder) {
		if s.Class == history.SymmemPool {
			got = append(got, fmt.Sprintf("ranks %v first %d", s.Ranks, indexOf(s.RequestDifference)))
		}
	}

	slices.Sort(got)
	want := []string{
		"ranks [0 1] first -1", "ranks [0 1] first 0", "ranks [2 3] first -1", "ranks [2 3] first 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("results for pools = %q; want %q", got, want)
	}
}

// usePools opens two pools of this rank's group and allocates memory from them. Even ranks allocate
// only from the first.
func usePools(ctx context.Context, rt *symmem.Runtime) error {
	half := rt.Rank() / 2
	g, err := rt.World().Split(ctx, half, rt.Rank())
	if err != nil {
		return err
	}

	for _, allocates := range []bool{true, rt.Rank()%2 == 1} {
		p, err := rt.NewPool(symmem.PoolOptions{Domain: g})
		if err != nil {
			return err
		}

		if allocates {
			if _, err := p.Alloc(int64(1000 * (half + 1))); err != nil {
				return err
			}
		}
	}

	return nil
}
