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

// A world is a job whose ranks run several random programs one after another. After the last
// program or the first failure, each rank prints a report:
//
//	{"Rank":1,"Program":14,"Reported":[],"Failures":["buffer 3 is wrong"]}

// kind describes a kind of random program, such as exchanges of messages.
type kind struct {
	programsPerWorld int
	timeLimit        time.Duration // for all programs of a world
	drawWorld        func(*task) (ranks int, o symmem.Options)
	openPerformer    func(context.Context, *symmem.Runtime, *task) (performer, error)
	describe         func(t *task, number int) fmt.Stringer // returns the program
	// isRankKilled reports whether the last program kills a rank before it prints its report. Nil
	// means that no program does.
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
	ProgramCount     int // at most ProgramsPerWorld
	ProgramsPerWorld int
	GPU              bool  // use the backend nccl instead of host
	Machines         int   // number of simulated machines, or 0 for the real one
	MaxBytes         int64 // limit for each rank's part of a buffer, only for "graphs"
}

func (t *task) lastProgram() int { return t.First + t.ProgramCount - 1 }

// worldDraws returns a random source that is the same for all programs of a world.
func (t *task) worldDraws() *rand.Rand {
	worldIndex := (t.First - 1) / t.ProgramsPerWorld
	unusedNumber := -1 - worldIndex // the numbers of programs are positive
	return newDraws(t.Seed, unusedNumber)
}

// performer performs the programs of one kind on a rank.
type performer interface {
	// run performs a program. It returns the errors that symmem reported, and the failures of the
	// program: wrong results, unexpected errors and missing errors.
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

// testOnAGPU runs programs on this machine's GPUs if SYMMEM_TEST_BACKEND is nccl, and otherwise on
// software GPUs. It skips the test if software GPUs are not available or too slow.
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
	var out worldOutput
	j := job{
		role: "programs", ranks: ranks, task: t, timeLimit: k.timeLimit, variables: env,
		machines: t.Machines, onLine: out.addLine,
	}
	_, jobErr := j.run(ctx)
	failures := k.findFailures(t, out.reports)
	if jobErr != nil {
		failures = append(failures, jobErr)
	}

	wantReports := ranks
	if k.isRankKilled != nil && k.isRankKilled(t) {
		wantReports--
	}

	isOutputWrong := len(out.reports) != wantReports || len(out.otherLines) > 0
	if len(failures) == 0 && isOutputWrong {
		failures = append(failures, fmt.Errorf("%d ranks wrote a report, want %d; other output: %q",
			len(out.reports), wantReports, out.otherLines))
	}

	if len(failures) == 0 {
		return nil
	}

	return fmt.Errorf("programs %d to %d: %w", t.First, t.lastProgram(), errors.Join(failures...))
}

// worldOutput holds the lines that the ranks of a world have printed.
type worldOutput struct {
	reports    []report
	otherLines []string
}

func (out *worldOutput) addLine(line string) {
	var r report
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		out.otherLines = append(out.otherLines, line)
		return
	}

	out.reports = append(out.reports, r)
}

// findFailures returns the failures in the reports. To explain them, it appends the errors that
// symmem reported and the first program that failed.
func (k *kind) findFailures(t *task, reports []report) (failures []error) {
	slices.SortStableFunc(reports, func(a, b report) int { return a.Program - b.Program })
	hasFailed := func(r report) bool { return len(r.Failures) > 0 }
	index := slices.IndexFunc(reports, hasFailed)
	if index < 0 {
		return nil
	}

	firstFailed := reports[index].Program
	for _, r := range reports {
		if hasFailed(r) {
			failures = append(failures, fmt.Errorf("program %d, rank %d: %s", r.Program, r.Rank,
				strings.Join(r.Failures, "; ")))
		}
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
