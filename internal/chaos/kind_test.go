package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

// kind describes a kind of random program. The ranks of a world run several programs of that
// kind, one after another, and each rank checks its results itself.
type kind struct {
	// perWorld is the number of programs that run in one world, and limit bounds the time for all
	// of them.
	perWorld int
	limit    time.Duration
	// world draws the size of a world and the options of its ranks.
	world func(*task) (ranks int, o symmem.Options)
	open  func(context.Context, *symmem.Runtime, *task) (performer, error)
	show  func(*task, int) fmt.Stringer
	// kills, if set, reports whether the last program of a world kills a rank.
	kills func(*task) bool
}

var kinds = map[string]*kind{
	"graphs": &graphs, "messages": &messages, "mistakes": &mistakes, "recoveries": &recoveries,
	"uneven": &uneven,
}

// task selects the programs that one world runs.
type task struct {
	Kind            string
	Seed            uint64
	First, Programs int
	PerWorld        int
	GPU             bool
	// Machines is the number of machines on which the ranks pretend to run, or 0.
	Machines int
	// MaxBytes is the maximum size of a sum in programs of the kind "graphs". Other kinds ignore
	// it.
	MaxBytes int64
}

func (t *task) last() int { return t.First + t.Programs - 1 }

// worldDraws returns a random number generator with the same state for all programs of a world.
func (t *task) worldDraws() *rand.Rand { return newDraws(t.Seed, -1-(t.First-1)/t.PerWorld) }

type performer interface {
	// run runs a program. reported lists the errors that symmem returned. bad lists wrong results,
	// unexpected errors, and expected errors that were not returned.
	run(number int) (reported, bad []string)
	close() error
}

// report holds a rank's results. The rank prints it as one line of JSON before it exits.
type report struct {
	Rank int
	// Program is the last program that the rank ran. Reported and Bad are the results of its run.
	Program       int
	Reported, Bad []string
}

func (k *kind) test(t *testing.T, programs int, base task, env []string) {
	t.Helper()
	run := func(ctx context.Context, first, n int) error {
		base := base
		base.Seed, base.First, base.Programs, base.PerWorld = *seedFlag, first, n, k.perWorld
		return k.run(ctx, &base, env)
	}
	batch{programs: programs, perWorld: k.perWorld, run: run}.test(t)
}

// testOnAGPU runs programs on the machine's GPUs if SYMMEM_TEST_BACKEND is nccl, or else on a
// software GPU.
func (k *kind) testOnAGPU(t *testing.T, programs int, base task) {
	t.Helper()
	skipSlow(t)
	base.GPU, base.Machines = true, *machinesFlag
	k.test(t, programs, base, gpuVariables(t))
}

func (k *kind) run(ctx context.Context, t *task, env []string) error {
	ranks, _ := k.world(t)
	var reports []report
	var other []string // lines that are not reports
	j := job{
		role: "programs", ranks: ranks, task: t, limit: k.limit, variables: env,
		machines: t.Machines,
		onLine: func(line string) {
			var r report
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				other = append(other, line)
				return
			}
			reports = append(reports, r)
		},
	}
	_, err := j.run(ctx)
	if k.kills != nil && k.kills(t) {
		ranks--
	}
	bad := k.verdict(t, reports)
	if err != nil {
		bad = append(bad, err)
	} else if len(bad) == 0 && (len(reports) != ranks || len(other) > 0) {
		bad = append(bad, fmt.Errorf("%d of %d ranks wrote a report; other output: %q", len(reports),
			ranks, other))
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("programs %d to %d: %w", t.First, t.last(), errors.Join(bad...))
}

// verdict returns the failures that the ranks found. If there are any, the errors that symmem
// reported and a listing of the first program that failed follow.
func (k *kind) verdict(t *task, reports []report) (bad []error) {
	slices.SortStableFunc(reports, func(a, b report) int { return a.Program - b.Program })
	first := 0
	for _, r := range reports {
		if len(r.Bad) == 0 {
			continue
		}
		if first == 0 {
			first = r.Program
		}
		bad = append(bad, fmt.Errorf("program %d, rank %d: %s", r.Program, r.Rank,
			strings.Join(r.Bad, "; ")))
	}
	if first == 0 {
		return nil
	}
	for _, r := range reports {
		for _, text := range r.Reported {
			bad = append(bad, fmt.Errorf("reported to rank %d: %.300s", r.Rank, text))
		}
	}
	return append(bad, fmt.Errorf("program %d: %v", first, k.show(t, first)))
}

func programsRank(text []byte) error {
	var t task
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}
	k, ctx := kinds[t.Kind], context.Background()
	_, o := k.world(&t)
	o.Backend = "host"
	if t.GPU {
		o.Backend = "nccl"
	}
	rt, err := symmem.Open(ctx, o)
	if err != nil {
		return err
	}
	p, err := k.open(ctx, rt, &t)
	if err != nil {
		return err
	}
	r := report{Rank: rt.Rank()}
	for n := t.First; n <= t.last() && len(r.Bad) == 0; n++ {
		r.Program = n
		r.Reported, r.Bad = p.run(n)
	}
	if err := p.close(); err != nil && len(r.Bad) == 0 {
		r.Bad = append(r.Bad, fmt.Sprintf("closing: %v", err))
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
