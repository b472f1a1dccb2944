package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys"
)

var longestFlag = flag.Duration("longest", time.Second, "the longest stop of a rank, from 1s on")

// signalTask describes a program in which one rank gets a signal.
type signalTask struct {
	Seed    uint64
	Program int
	// Longest is the longest stop of the rank; 0 kills it.
	Longest time.Duration
	GPU     bool
	// Store also kills the rank that serves the store, before it can report the first death.
	Store bool
}

// The calls in which ranks get signals.
const (
	inOpen  = "Open"
	inSplit = "Split"
	inJoin  = "Join"
	inLeave = "Group.Close"
	inClose = "Runtime.Close"
	// anywhere is any moment after Open.
	anywhere = "any call"
)

// signalPlan selects the rank, the signal and the moment.
type signalPlan struct {
	ranks, victim int
	// also is a rank that is stopped before the victim is killed, and killed afterwards; -1 for none.
	also int
	// bare starts the ranks without the launcher's store. apart makes the GPU backend treat each rank
	// as if it were on a separate machine.
	bare, apart bool
	// gpu selects the GPU backend, path its path.
	gpu  bool
	path symmem.PathChoice
	// stop is the length of the stop; 0 kills the rank.
	stop time.Duration
	// in and round are the call that the victim announces. It gets the signal some time after that.
	in    string
	round int
	after time.Duration
	// late delays each rank before that call.
	late []time.Duration
}

const (
	// shortestStop is the shortest stop of a rank.
	shortestStop = time.Second
	// longTimeout is Options.Timeout. It exceeds a stop and the time until a killed rank is named.
	longTimeout = time.Minute
	// openTimeout is Options.Timeout of ranks without the launcher if one is killed in Open, where the
	// others may not be connected to it.
	openTimeout = 4 * time.Second
	// named bounds the time until a survivor names a killed rank.
	named = 3 * time.Second
	// namedOnSoftware is the same on the software GPU, whose kernels keep the processors busy.
	namedOnSoftware = 15 * time.Second
	// signalLimit bounds a program, without the stop.
	signalLimit = 60 * time.Second
)

// plan draws the plan of a program. In half of the programs the signal comes in Open, Split, Join
// or a Close.
func (s *signalTask) plan() *signalPlan {
	d := newDraws(s.Seed, s.Program)
	if s.Store {
		return &signalPlan{
			ranks: 3, victim: 1 + d.IntN(2), bare: true, in: inJoin, late: make([]time.Duration, 3),
			after: time.Duration(d.IntN(int(30 * time.Millisecond))),
		}
	}
	p := &signalPlan{
		also: -1, ranks: 2 + d.IntN(3), bare: d.IntN(2) == 0, in: anywhere, round: d.IntN(4),
		after: time.Duration(d.IntN(int(300 * time.Millisecond))),
	}
	p.victim = d.IntN(p.ranks)
	p.late = make([]time.Duration, p.ranks)
	calls := []string{inOpen, inSplit, inJoin, inLeave, inClose}
	if s.Longest > 0 {
		p.stop = shortestStop + time.Duration(d.Int64N(int64(max(s.Longest-shortestStop, 0)+1)))
		calls = calls[:3]
	}
	if d.IntN(2) == 0 {
		p.in = calls[d.IntN(len(calls))]
		p.after = time.Duration(d.IntN(int(30 * time.Millisecond)))
	}
	if s.GPU {
		p.gpu, p.apart = true, p.bare && d.IntN(2) == 0
		p.path = []symmem.PathChoice{symmem.PathPlain, symmem.PathDirect}[d.IntN(2)]
	}
	for r := range p.late {
		if r != p.victim && d.IntN(2) == 0 {
			p.late[r] = time.Duration(d.IntN(int(40 * time.Millisecond)))
		}
	}
	return p
}

func (p *signalPlan) String() string {
	how, what := "under the launcher", "killed"
	if p.bare {
		how = "without the launcher"
	}
	if p.stop > 0 {
		what = fmt.Sprintf("stopped for %v", p.stop)
	}
	if p.apart {
		how += ", on different machines"
	}
	return fmt.Sprintf("%d ranks %s, rank %d %s, %v after it began %s of round %d", p.ranks, how,
		p.victim, what, p.after, p.in, p.round)
}

func (p *signalPlan) timeout() time.Duration {
	if p.bare && p.in == inOpen {
		return openTimeout
	}
	return longTimeout
}

// signalLine holds a line that a rank writes: it announces the call in which it gets the signal, or
// reports how it ended.
type signalLine struct {
	Rank, PID int
	// Announces reports that the rank may get its signal from now on.
	Announces bool
	// At is the time of the error, or of the end, in nanoseconds since 1970.
	At   int64
	Call string
	// Text is the error, Lost the ranks of a RankLostError.
	Text string
	Lost []int
	// Log has the lines that the rank has logged, Slowest the longest call.
	Log     []string
	Slowest string
}

// TestKills kills a rank at any moment, in half of the programs in Open, Split, Join, Group.Close
// or Runtime.Close, with and without the launcher. Every other rank must name it within three
// seconds, and no process, file or socket may remain.
func TestKills(t *testing.T) {
	signalTask{}.test(t, 16, nil)
}

// TestKillsWithTheStore kills a rank, and then the one that serves the store. The third rank must
// name the first one.
func TestKillsWithTheStore(t *testing.T) { signalTask{Store: true}.test(t, 4, nil) }

// TestKillsOnAGPU is TestKills on the GPU backend, also with ranks of different machines.
func TestKillsOnAGPU(t *testing.T) {
	skipSlow(t)
	signalTask{GPU: true}.test(t, 8, gpuVariables(t))
}

// TestStops stops a rank for a second, or, with -longest=20s, for up to twenty, in half of the
// programs in Open, Split or Join. All results must be right, without an error. In the other half
// every other rank must have logged a warning that names the stopped rank.
func TestStops(t *testing.T) { signalTask{Longest: *longestFlag}.test(t, 6, nil) }

// TestStopsOnAGPU is TestStops on the GPU backend, without the warnings.
func TestStopsOnAGPU(t *testing.T) {
	skipSlow(t)
	signalTask{Longest: *longestFlag, GPU: true}.test(t, 4, gpuVariables(t))
}

// test runs some programs.
func (s signalTask) test(t *testing.T, programs int, env []string) {
	t.Helper()
	batch{programs: programs, each: 1, run: func(ctx context.Context, number, _ int) error {
		task := s
		task.Seed, task.Program = *seedFlag, number
		return signals(ctx, task, env)
	}}.test(t)
}

func signals(ctx context.Context, task signalTask, env []string) error {
	p := task.plan()
	x := &signaller{plan: p, pids: map[int]int{}}
	before := sharedMemory()
	folder, err := os.MkdirTemp("", "chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	j := job{
		role: "signals", ranks: p.ranks, task: task, limit: signalLimit + p.stop, hear: x.hear,
		folder: folder, variables: env,
	}
	result, err := j.run(ctx)
	x.pending.Wait()
	var bad []error
	if err != nil {
		bad = append(bad, err)
	} else {
		died := result.Exits[p.victim].Signal == syscall.SIGKILL
		bad = append(bad, x.verdict(died)...)
	}
	if left := j.remains(before); left != "" {
		bad = append(bad, fmt.Errorf("left behind: %s", left))
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("program %d: %v: %w\n%s", task.Program, p, errors.Join(bad...), x.text())
}

// signaller sends the signals of a plan and collects the lines of the ranks.
type signaller struct {
	plan    *signalPlan
	pending sync.WaitGroup // signal

	mu     sync.Mutex
	pids   map[int]int  // of ranks that may get a signal; guarded by mu
	sent   time.Time    // when; guarded by mu
	failed error        // why the rank was not stopped; guarded by mu
	lines  []signalLine // guarded by mu
	other  []string     // guarded by mu
}

func (x *signaller) hear(line string) {
	var l signalLine
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		x.other = append(x.other, line)
		return
	}
	if !l.Announces {
		x.lines = append(x.lines, l)
		return
	}
	if x.pids[l.Rank] != 0 {
		return // not the first announcement
	}
	x.pids[l.Rank] = l.PID
	victim, also := x.pids[x.plan.victim], x.pids[x.plan.also]
	if victim != 0 && (also != 0 || x.plan.also < 0) {
		x.pending.Go(func() { x.signal(victim, also) })
	}
}

func (x *signaller) signal(victim, also int) {
	<-time.After(x.plan.after)
	var err error
	switch {
	case x.plan.stop > 0:
		err = syscall.Kill(victim, syscall.SIGSTOP)
		<-time.After(x.plan.stop)
		err = errors.Join(err, syscall.Kill(victim, syscall.SIGCONT))
	case also != 0:
		err = syscall.Kill(also, syscall.SIGSTOP)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent, x.failed = time.Now(), err
	if x.plan.stop > 0 {
		return
	}
	watch, err := sys.Pidfd(victim)
	if err != nil {
		return // the process has ended
	}
	defer watch.Close()
	_ = syscall.Kill(victim, syscall.SIGKILL) // fails if the process has ended
	if also != 0 {
		x.failed = errors.Join(x.failed, sys.AwaitEnd(watch), syscall.Kill(also, syscall.SIGKILL))
	}
}

// verdict returns what is wrong with the lines of the ranks.
func (x *signaller) verdict(died bool) (bad []error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed != nil {
		bad = append(bad, fmt.Errorf("stopping rank %d: %w", x.plan.victim, x.failed))
	}
	judge := x.judgeKilled
	if x.plan.stop > 0 {
		judge = x.judgeStopped
	}
	heard := map[int]bool{}
	for i := range x.lines {
		l := &x.lines[i]
		heard[l.Rank] = true
		if err := judge(l, died); err != nil {
			bad = append(bad, fmt.Errorf("rank %d, in %s: %w", l.Rank, l.Call, err))
		}
	}
	for r := range x.plan.ranks {
		if !heard[r] && r != x.plan.also && (r != x.plan.victim || x.plan.stop > 0) {
			bad = append(bad, fmt.Errorf("rank %d has reported nothing", r))
		}
	}
	if len(x.other) > 0 {
		bad = append(bad, fmt.Errorf("other output: %q", x.other))
	}
	return bad
}

// judgeStopped returns what is wrong with the line of a rank after a stop.
func (x *signaller) judgeStopped(l *signalLine, _ bool) error {
	warned := slices.ContainsFunc(l.Log, func(text string) bool {
		return mentions(text, x.plan.victim)
	})
	switch {
	case l.Text != "":
		return errors.New(l.Text)
	case l.Rank != x.plan.victim && x.plan.in == anywhere && !x.plan.gpu && !warned:
		return fmt.Errorf("no warning of rank %d: %q; %s", x.plan.victim, l.Log, l.Slowest)
	}
	return nil
}

// judgeKilled returns what is wrong with the line of a rank after a kill.
func (x *signaller) judgeKilled(l *signalLine, died bool) error {
	p := x.plan
	took := time.Unix(0, l.At).Sub(x.sent)
	limit := named
	if p.gpu && os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		limit = namedOnSoftware
	}
	if p.bare && p.in == inOpen {
		limit += openTimeout
	}
	switch {
	case l.Rank == p.victim:
		return nil // it had ended before
	case l.Text == "" && p.in == inClose && took <= limit:
		return nil // it no longer needed the other ranks
	case !died:
		return fmt.Errorf("an error, although no rank died: %s", l.Text)
	case took > limit:
		return fmt.Errorf("ended %v after the kill: %s", took, l.Text)
	case took < 0:
		return fmt.Errorf("an error before the kill: %s", l.Text)
	case p.bare && p.in == inOpen && mentions(l.Text, p.victim):
		return nil // the other ranks may not know a rank that is killed there
	case p.also >= 0 && slices.Contains(l.Lost, p.victim):
		return nil
	case !slices.Equal(l.Lost, []int{p.victim}):
		return fmt.Errorf("no RankLostError that names rank %d alone: %s", p.victim, l.Text)
	}
	return nil
}

// mentions reports whether a text names a rank.
func mentions(text string, rank int) bool {
	return regexp.MustCompile(`ranks? \[?([0-9]+, ?)*` + strconv.Itoa(rank) + `\b`).MatchString(text)
}

func (x *signaller) text() (text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.lines {
		text += fmt.Sprintf("rank %d in %s after %v: %s\n", l.Rank, l.Call,
			time.Unix(0, l.At).Sub(x.sent), l.Text)
	}
	return text
}
