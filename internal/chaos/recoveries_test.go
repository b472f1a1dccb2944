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

// recoveriesTask is what a rank is told: which programs one world runs, one after the other.
type recoveriesTask struct {
	Seed            uint64
	First, Programs int
	// Paths are those that groups may take.
	Paths   []symmem.PathChoice
	Backend string
}

const (
	// recoveriesWorld is how many programs one world of processes runs; recoveriesLimit is how long
	// they may take together, and recoveriesTimeout is Options.Timeout.
	recoveriesWorld   = 20
	recoveriesLimit   = 3 * time.Minute
	recoveriesTimeout = 20 * time.Second
)

// recoveryFault is what ends the group of a program.
type recoveryFault int

const (
	// aborted: a rank aborts the group instead of a call, and makes no more.
	aborted recoveryFault = iota //nolint:unused // It is the zero value.
	// abortedSoon: it aborts the group at some time after that, from another goroutine.
	abortedSoon
	// cancelled: its context ends while it registers memory.
	cancelled
	// died: its process ends. It is the last program of its world.
	died
	recoveryFaults
)

func (f recoveryFault) String() string {
	return [...]string{"aborts", "aborts soon", "cancels", "dies"}[f]
}

// recoveryWay is how ranks go on.
type recoveryWay int

const (
	bySplit recoveryWay = iota
	byJoin
	byWorld
	recoveryWays
)

func (w recoveryWay) String() string { return [...]string{"Split", "Join", "the world"}[w] }

// recoveryKind is what a step does.
type recoveryKind int

const (
	takeBuffer recoveryKind = iota
	dropBuffer
	addUp
	copyOver
	captureCalls
	launchCaptured
	waitForStream
	sendAlong
	recoveryKinds
)

// recoveryStep is what all ranks do, as long as the group is good. Of which is meant which of the
// buffers or graphs of the program, modulo their number.
type recoveryStep struct {
	kind          recoveryKind
	stream, which int
	bytes         int64
}

// recovery is a program: steps in a group until that fails, and what the ranks do then.
type recovery struct {
	steps  []recoveryStep
	fault  recoveryFault
	victim int
	at     int // the step of the fault
	// outsider is a rank that is not in the group, or none. It notes the uses that the others make.
	outsider int
	way      recoveryWay
	// after are steps of the group with which the ranks go on, of which all must be right.
	after []recoveryStep
}

func (t *recoveriesTask) world() (ranks int, o symmem.Options) {
	d := newDraws(t.Seed, -t.First)
	return 2 + d.IntN(3), symmem.Options{
		Backend: t.Backend, Timeout: recoveriesTimeout, CheckInterval: -1,
		Check: []symmem.CheckLevel{
			symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery, symmem.CheckEvery,
		}[d.IntN(4)],
		Path: t.Paths[d.IntN(len(t.Paths))],
	}
}

// program draws a program. A rank may die in the last one of a world.
func (t *recoveriesTask) program(number int) *recovery {
	ranks, _ := t.world()
	d := newDraws(t.Seed, number)
	p := &recovery{
		steps: drawSteps(d, 4+d.IntN(16)), victim: d.IntN(ranks),
		way:   recoveryWay(d.IntN(int(recoveryWays))),
		after: drawSteps(d, 2+d.IntN(10)),
	}
	p.at, p.outsider = d.IntN(len(p.steps)), -1
	p.fault = recoveryFault(d.IntN(int(died)))
	if other := d.IntN(4 * ranks); ranks > 2 && other < ranks && other != p.victim {
		p.outsider, p.way = other, recoveryWay(d.IntN(int(byWorld)))
	}
	if last := t.First + t.Programs - 1; number == last && ranks > 2 && d.IntN(2) == 0 {
		p.fault, p.way = died, byJoin
	}
	return p
}

func drawSteps(d *rand.Rand, n int) (steps []recoveryStep) {
	for range n {
		steps = append(steps, recoveryStep{
			kind: recoveryKind(d.IntN(int(recoveryKinds))), stream: d.IntN(streams), which: d.IntN(1000),
			bytes: 4 * (1 + d.Int64N(1<<(10+d.IntN(10)))),
		})
	}
	return steps
}

func (p *recovery) String() string {
	return fmt.Sprintf("without rank %d, rank %d %v at step %d of %+v, then by %v %+v", p.outsider,
		p.victim, p.fault, p.at, p.steps, p.way, p.after)
}

// recoveriesReport is what a rank has found.
type recoveriesReport struct {
	Rank, Program int
	Bad           []string
}

// TestRecoveries has ranks allocate, free, capture, and call on several streams in a group that
// fails at any moment, at a different place of the program on each rank. They free what they have
// allocated, close the group, and go on with another one over the same pool: buffers then lie at
// the same places on all ranks, sums are right, and nothing is refused.
func TestRecoveries(t *testing.T) {
	bar{programs: 200, each: recoveriesWorld, run: func(ctx context.Context, first, n int) error {
		return recoveries(ctx, recoveriesTask{
			Seed: *seedFlag, First: first, Programs: n, Backend: "host",
			Paths: []symmem.PathChoice{symmem.PathWindow, symmem.PathAuto, symmem.PathPlain},
		}, nil)
	}}.meet(t)
}

// TestRecoveriesOnAGPU is TestRecoveries without the window path: NCCL's window kernels that were
// aborted run until their process ends.
func TestRecoveriesOnAGPU(t *testing.T) {
	if racing {
		t.Skip(fmt.Errorf("the software GPU takes minutes under the race detector: %w",
			symmem.ErrUnsupported))
	}
	env := gpuVariables(t)
	bar{programs: 40, each: recoveriesWorld, run: func(ctx context.Context, first, n int) error {
		return recoveries(ctx, recoveriesTask{
			Seed: *seedFlag, First: first, Programs: n, Backend: "nccl",
			Paths: []symmem.PathChoice{symmem.PathDirect, symmem.PathPlain},
		}, env)
	}}.meet(t)
}

func recoveries(ctx context.Context, task recoveriesTask, env []string) error {
	ranks, o := task.world()
	var reports []recoveriesReport
	var other []string
	j := job{
		role: "recoveries", ranks: ranks, task: task, limit: recoveriesLimit, variables: env,
		hear: func(line string) {
			var r recoveriesReport
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				other = append(other, line)
				return
			}
			reports = append(reports, r)
		},
	}
	_, err := j.run(ctx)
	last := task.First + task.Programs - 1
	want := ranks
	if task.program(last).fault == died {
		want--
	}
	bad := []error{err}
	for _, r := range reports {
		if len(r.Bad) > 0 {
			bad = append(bad, fmt.Errorf("program %d, rank %d: %s\n%v", r.Program, r.Rank,
				strings.Join(r.Bad, "; "), task.program(r.Program)))
		}
	}
	if err == nil && len(bad) == 1 && (len(reports) != want || len(other) > 0) {
		bad = append(bad, fmt.Errorf("%d of %d ranks have reported; %q", len(reports), want, other))
	}
	if err := errors.Join(bad...); err != nil {
		return fmt.Errorf("programs %d to %d, %d ranks, level %v, path %v: %w", task.First, last, ranks,
			o.Check, o.Path, err)
	}
	return nil
}

// recoveriesRank is the main function of a rank.
func recoveriesRank(text []byte) error {
	var task recoveriesTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	_, o := task.world()
	r, err := openRecoverer(context.Background(), o)
	if err != nil {
		return err
	}
	report := recoveriesReport{Rank: r.rt.Rank(), Program: task.First}
	for ; report.Program < task.First+task.Programs; report.Program++ {
		r.noise = newDraws(task.Seed<<20+uint64(report.Program), r.rt.Rank())
		p := task.program(report.Program)
		if err := r.run(report.Program, p); err != nil {
			report.Bad = append(report.Bad, err.Error())
			break
		}
	}
	if err := r.close(); err != nil && len(report.Bad) == 0 {
		report.Bad = append(report.Bad, fmt.Sprintf("closing: %v", err))
	}
	report.Program = min(report.Program, task.First+task.Programs-1)
	return json.NewEncoder(os.Stdout).Encode(report)
}

// survivors are the world ranks that live after a program.
func (p *recovery) survivors(ranks int) (all []int) {
	for r := range ranks {
		all = append(all, r)
	}
	if p.fault == died {
		all = slices.Delete(all, p.victim, p.victim+1)
	}
	return all
}
