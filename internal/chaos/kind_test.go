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

// A random program is a list of ops that all ranks perform. There are several kinds of programs,
// for example programs of messages. A world is a job of several processes, the ranks. Suppose that
// a world runs the programs 11 to 20. Each rank performs program 11 and checks its results, then
// program 12, and so on. After a failure or after program 20, it prints a report:
//
//	{"Rank":1,"Program":14,"Reported":[],"Failures":["buffer 3 is wrong"]}
//
// The test, which has started the ranks, collects the reports.

// kind describes a kind of random program.
type kind struct {
	programsPerWorld int           // number of programs that a world runs
	timeLimit        time.Duration // for all programs of a world
	// drawWorld draws the number of ranks of a world and their options.
	drawWorld func(*task) (ranks int, o symmem.Options)
	// openPerformer returns a performer of the programs on this rank.
	openPerformer func(context.Context, *symmem.Runtime, *task) (performer, error)
	// describe returns the program with the given number, for a report.
	describe func(t *task, number int) fmt.Stringer
	// isRankKilled reports whether the last program of a world kills a rank, which then prints no
	// report. nil means that no program kills a rank.
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
	First            int   // number of the first program, from 1
	ProgramCount     int   // number of programs in this world; smaller than usual in the last world
	ProgramsPerWorld int   // usual number of programs in a world
	GPU              bool  // whether the ranks use GPUs
	Machines         int   // number of pretended machines, or 0 for the real one
	MaxBytes         int64 // limit for the size of sums in programs of the kind "graphs"
}

func (t *task) lastProgram() int { return t.First + t.ProgramCount - 1 }

// worldDraws returns a source of random numbers for the world. It returns the same ones whenever it
// is called for a program of this world.
func (t *task) worldDraws() *rand.Rand {
	world := (t.First - 1) / t.ProgramsPerWorld
	return newDraws(t.Seed, -1-world) // negative, unlike the numbers of programs
}

// performer performs the programs of one kind on a rank.
type performer interface {
	// run performs a program. It returns the errors that symmem reported. A failure describes a wrong
	// result, an unexpected error, or an error that symmem should have reported.
	run(number int) (reported, failures []string)
	close() error
}

// report holds the results of a rank, which prints it as one line of JSON before it exits.
type report struct {
	Rank               int
	Program            int      // number of the last program that the rank performed
	Reported, Failures []string // results of performer.run for this program
}

// test runs the given number of programs, unless the flag -programs is set. A failed program fails
// the test. base is the task of all worlds, without the numbers of programs. env holds additional
// environment variables of the ranks.
func (k *kind) test(t *testing.T, programs int, base task, env []string) {
	t.Helper()
	runWorld := func(ctx context.Context, first, n int) error {
		world := base // a copy
		world.Seed = *seedFlag
		world.First = first
		world.ProgramCount = n
		world.ProgramsPerWorld = k.programsPerWorld
		return k.run(ctx, &world, env)
	}
	batch{defaultCount: programs, programsPerWorld: k.programsPerWorld, run: runWorld}.test(t)
}

// testOnAGPU is like test, but ranks use the machine's GPUs if SYMMEM_TEST_BACKEND is nccl, or else
// software GPUs. It skips the test under the race detector, and without a compiler.
func (k *kind) testOnAGPU(t *testing.T, programs int, base task) {
	t.Helper()
	skipSlow(t)
	base.GPU = true
	base.Machines = *machinesFlag
	k.test(t, programs, base, gpuVariables(t))
}

// run runs the programs of one world and returns their failures.
func (k *kind) run(ctx context.Context, t *task, env []string) error {
	ranks, _ := k.drawWorld(t)
	var reports []report
	var otherLines []string // lines of output that are not reports
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
	_, err := j.run(ctx)
	wantReports := ranks
	if k.isRankKilled != nil && k.isRankKilled(t) {
		wantReports--
	}

	failures := k.verdict(t, reports)
	isOutputWrong := len(reports) != wantReports || len(otherLines) > 0
	if err != nil {
		failures = append(failures, err)
	} else if len(failures) == 0 && isOutputWrong {
		failures = append(failures, fmt.Errorf("%d ranks wrote a report, want %d; other output: %q",
			len(reports), wantReports, otherLines))
	}

	if len(failures) == 0 {
		return nil
	}

	return fmt.Errorf("programs %d to %d: %w", t.First, t.lastProgram(), errors.Join(failures...))
}

// verdict returns the failures in the reports, or nil if there are none. They are followed by the
// errors that symmem reported, and by a description of the first program that failed.
func (k *kind) verdict(t *task, reports []report) (failures []error) {
	slices.SortStableFunc(reports, func(a, b report) int { return a.Program - b.Program })
	firstFailed := 0 // number of a program, or 0
	for _, r := range reports {
		if len(r.Failures) == 0 {
			continue
		}

		if firstFailed == 0 {
			firstFailed = r.Program
		}

		failures = append(failures, fmt.Errorf("program %d, rank %d: %s", r.Program, r.Rank,
			strings.Join(r.Failures, "; ")))
	}

	if firstFailed == 0 {
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

// programsRankMain runs the programs of a task on this rank and prints the report.
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
	for n := t.First; n <= t.lastProgram() && len(r.Failures) == 0; n++ {
		r.Program = n
		r.Reported, r.Failures = p.run(n)
	}

	if err := p.close(); err != nil && len(r.Failures) == 0 {
		r.Failures = append(r.Failures, fmt.Sprintf("closing: %v", err))
	}

	return json.NewEncoder(os.Stdout).Encode(r)
}
