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

// A world is a job of several processes, the ranks, which run several random programs in turn. At
// the end or at the first failure, each rank prints a report for the test:
//
//	{"Rank":1,"Program":14,"Reported":[],"Failures":["buffer 3 is wrong"]}

// kind describes a kind of random program, such as exchanges of messages.
type kind struct {
	programsPerWorld int
	timeLimit        time.Duration // for all programs of a world
	drawWorld        func(*task) (ranks int, o symmem.Options)
	openPerformer    func(context.Context, *symmem.Runtime, *task) (performer, error)
	describe         func(t *task, number int) fmt.Stringer // returns a program
	// isRankKilled reports whether the last program kills a rank, which then prints no report. It is
	// nil if no program kills a rank.
	isRankKilled func(*task) bool
}

var kinds = map[string]*kind{
	"graphs": &graphs, "messages": &messages, "mistakes": &mistakes, "recoveries": &recoveries,
	"uneven": &uneven,
}

// task selects the programs of one world.
type task struct {
	Kind             string // key of kinds
	Seed             uint64
	First            int // number of the first program, 1 or higher
	ProgramCount     int // ProgramsPerWorld, or less in the last world
	ProgramsPerWorld int
	GPU              bool
	Machines         int   // number of simulated machines, or 0 for the real one
	MaxBytes         int64 // limit for each rank's part of a buffer in the kind "graphs"
}

func (t *task) lastProgram() int { return t.First + t.ProgramCount - 1 }

// worldDraws returns a random source that is the same for all programs of a world.
func (t *task) worldDraws() *rand.Rand {
	worldIndex := (t.First - 1) / t.ProgramsPerWorld
	number := -1 - worldIndex // negative, unlike the numbers of programs
	return newDraws(t.Seed, number)
}

// performer performs the programs of one kind on a rank.
type performer interface {
	// run returns the errors that symmem reported. The failures are wrong results, unexpected errors
	// and missing errors.
	run(number int) (reported, failures []string)
	close() error
}

// report holds the results of performer.run for the last program that a rank performed.
type report struct {
	Rank, Program      int
	Reported, Failures []string
}

// test runs programs of this kind. base holds the fields of a task that are the same for all
// worlds. env holds additional environment variables of the ranks.
func (k *kind) test(t *testing.T, defaultCount int, base task, env []string) {
	t.Helper()
	runWorld := func(ctx context.Context, first, count int) error {
		worldTask := base
		worldTask.Seed = *seedFlag
		worldTask.First = first
		worldTask.ProgramCount = count
		worldTask.ProgramsPerWorld = k.programsPerWorld
		return k.run(ctx, &worldTask, env)
	}
	batch{defaultCount: defaultCount, programsPerWorld: k.programsPerWorld, run: runWorld}.test(t)
}

// testOnAGPU is like test, but on GPUs: those of this machine if SYMMEM_TEST_BACKEND is nccl, or
// else software GPUs. It skips the test where these are not available or too slow.
func (k *kind) testOnAGPU(t *testing.T, defaultCount int, base task) {
	t.Helper()
	skipSlow(t)
	base.GPU = true
	base.Machines = *machinesFlag
	k.test(t, defaultCount, base, gpuVariables(t))
}

// run runs the programs of one world and returns their failures.
func (k *kind) run(ctx context.Context, t *task, env []string) error {
	ranks, _ := k.drawWorld(t)
	var reports []report
	var otherLines []string
	j := job{
		role: "programs", ranks: ranks, task: t, timeLimit: k.timeLimit, variables: env,
		machines: t.Machines,
		onLine: func(line string) {
			var r report
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				otherLines = append(otherLines, line)
				return
			}

			reports = append(reports, r)
		},
	}
	_, jobErr := j.run(ctx)
	wantReports := ranks
	if k.isRankKilled != nil && k.isRankKilled(t) {
		wantReports--
	}

	failures := k.verdict(t, reports)
	if jobErr != nil {
		failures = append(failures, jobErr)
	}

	isOutputWrong := len(reports) != wantReports || len(otherLines) > 0
	if len(failures) == 0 && isOutputWrong {
		failures = append(failures, fmt.Errorf("%d ranks wrote a report, want %d; other output: %q",
			len(reports), wantReports, otherLines))
	}

	if len(failures) == 0 {
		return nil
	}

	return fmt.Errorf("programs %d to %d: %w", t.First, t.lastProgram(), errors.Join(failures...))
}

// verdict returns the failures in the reports. If there are any, it appends the errors that symmem
// reported and the program that failed first.
func (k *kind) verdict(t *task, reports []report) (failures []error) {
	slices.SortStableFunc(reports, func(a, b report) int { return a.Program - b.Program })
	const none = 0
	firstFailed := none // number of a program
	for _, r := range reports {
		if len(r.Failures) == 0 {
			continue
		}

		if firstFailed == none {
			firstFailed = r.Program
		}

		failures = append(failures, fmt.Errorf("program %d, rank %d: %s", r.Program, r.Rank,
			strings.Join(r.Failures, "; ")))
	}

	if firstFailed == none {
		return nil
	}

	for _, r := range reports {
		for _, text := range r.Reported {
			const maxCharacters = 300
			failures = append(failures, fmt.Errorf("reported to rank %d: %.*s", r.Rank, maxCharacters,
				text))
		}
	}

	return append(failures, fmt.Errorf("program %d: %v", firstFailed, k.describe(t, firstFailed)))
}

// programsRankMain runs the programs of a task on this rank and prints a report.
func programsRankMain(text []byte) error {
	var t task
	if err := json.Unmarshal(text, &t); err != nil {
		return err
	}

	k := kinds[t.Kind]
	ctx := context.Background()
	_, o := k.drawWorld(&t)
	o.Backend = "host"
	if t.GPU {
		o.Backend = "nccl"
	}

	rt, err := symmem.Open(ctx, o)
	if err != nil {
		return err
	}

	p, err := k.openPerformer(ctx, rt, &t)
	if err != nil {
		return err
	}

	r := report{Rank: rt.Rank()}
	for n := t.First; n <= t.lastProgram(); n++ {
		r.Program = n
		r.Reported, r.Failures = p.run(n)
		if len(r.Failures) > 0 {
			break
		}
	}

	if err := p.close(); err != nil && len(r.Failures) == 0 {
		r.Failures = append(r.Failures, fmt.Sprintf("closing: %v", err))
	}

	return json.NewEncoder(os.Stdout).Encode(r)
}
