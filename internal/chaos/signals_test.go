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

var longestFlag = flag.Duration("longest", time.Second,
	"the longest time for which a rank is stopped, at least 1s")

// signalTask describes a program in which one rank is killed or stopped.
type signalTask struct {
	Seed    uint64
	Program int
	// Longest is the longest time for which the rank may be stopped. If it is 0, the rank is killed
	// instead.
	Longest time.Duration
	GPU     bool
	// Machines is the number of machines on which the ranks pretend to run. If it is at most 1,
	// some programs on GPUs put each rank on a different machine.
	Machines int
	// Store is set if the rank that serves the store is killed too, before it can report that
	// another rank was killed.
	Store bool
}

const (
	callOpen         = "Open"
	callSplit        = "Split"
	callJoin         = "Join"
	callGroupClose   = "Group.Close"
	callRuntimeClose = "Runtime.Close"
	anyCall          = "any call"
)

type signalPlan struct {
	ranks, victim int
	// secondVictim is a rank that is stopped before the victim is killed, and killed afterwards. It
	// is -1 if there is none.
	secondVictim int
	// noLauncher makes the ranks ignore the launcher and its store.
	noLauncher bool
	// machines is the number of machines on which the ranks pretend to run, or 0 for the real one.
	machines int
	// gpu selects the GPU backend. path is the path of the collectives on it.
	gpu  bool
	path symmem.PathChoice
	// stop is the time for which the victim is stopped. If it is 0, the victim is killed instead.
	stop time.Duration
	// call and round select the call in which the victim gets the signal. The victim announces the
	// call before making it, and gets the signal signalDelay after the announcement. The other
	// ranks make the call after their delays.
	call        string
	round       int
	signalDelay time.Duration
	delays      []time.Duration
}

const (
	shortestStop = time.Second
	// longTimeout is Options.Timeout in most programs. It exceeds both the time for which a rank is
	// stopped and the time until an error names a killed rank.
	longTimeout = time.Minute
	// openTimeout is Options.Timeout if a rank is killed in Open without the launcher. It is short
	// because ranks that have not connected to the killed rank can only time out.
	openTimeout = 4 * time.Second
	// namingLimit is the time within which the error of a surviving rank must name a killed rank.
	// It does not include the time before the survivor's process has started, or the time for which
	// survivors are ready to run but have no processor.
	namingLimit = 3 * time.Second
	// softwareNamingLimit is used instead of namingLimit on the software GPU, whose kernels keep
	// the processors busy.
	softwareNamingLimit = 15 * time.Second
	// signalLimit limits the duration of a program, not counting the time for which a rank is
	// stopped.
	signalLimit = 60 * time.Second
)

// plan draws the plan of the task's program. In half of the programs, the signal arrives in Open,
// Split, Join or Close. In the others, it may arrive in any call.
func (s *signalTask) plan() *signalPlan {
	d := newDraws(s.Seed, s.Program)
	if s.Store {
		return &signalPlan{
			ranks: 3, victim: 1 + d.IntN(2), noLauncher: true, call: callJoin,
			delays:      make([]time.Duration, 3),
			signalDelay: time.Duration(d.IntN(int(30 * time.Millisecond))),
		}
	}

	p := &signalPlan{
		secondVictim: -1, ranks: 2 + d.IntN(3), noLauncher: d.IntN(2) == 0, call: anyCall,
		round:       d.IntN(4),
		signalDelay: time.Duration(d.IntN(int(300 * time.Millisecond))),
	}
	p.victim = d.IntN(p.ranks)
	p.delays = make([]time.Duration, p.ranks)
	calls := []string{callOpen, callSplit, callJoin, callGroupClose, callRuntimeClose}
	if s.Longest > 0 {
		p.stop = shortestStop + time.Duration(d.Int64N(int64(max(s.Longest-shortestStop, 0)+1)))
		calls = calls[:3]
	}

	if d.IntN(2) == 0 {
		p.call = calls[d.IntN(len(calls))]
		p.signalDelay = time.Duration(d.IntN(int(30 * time.Millisecond)))
	}

	if s.GPU {
		p.gpu = true
		if s.Machines > 1 {
			p.machines = s.Machines
		} else if p.noLauncher && d.IntN(2) == 0 {
			p.machines = p.ranks
		}

		p.path = []symmem.PathChoice{symmem.PathPlain, symmem.PathDirect}[d.IntN(2)]
	}

	for r := range p.delays {
		if r != p.victim && d.IntN(2) == 0 {
			p.delays[r] = time.Duration(d.IntN(int(40 * time.Millisecond)))
		}
	}

	return p
}

func (p *signalPlan) String() string {
	setup, fate := "under the launcher", "killed"
	if p.noLauncher {
		setup = "without the launcher"
	}

	if p.stop > 0 {
		fate = fmt.Sprintf("stopped for %v", p.stop)
	}

	if p.machines > 1 {
		setup += fmt.Sprintf(", on %d machines", p.machines)
	}

	return fmt.Sprintf("%d ranks %s, rank %d %s %v after it began %s of round %d", p.ranks, setup,
		p.victim, fate, p.signalDelay, p.call, p.round)
}

func (p *signalPlan) timeout() time.Duration {
	if p.noLauncher && p.call == callOpen {
		return openTimeout
	}

	return longTimeout
}

// signalLine is a line that a rank writes to standard output. It either announces the call in
// which the rank is to be killed or stopped, or reports how the rank ended.
type signalLine struct {
	Rank, PID int
	// Announces is set in an announcement: from now on, the rank may get the signal.
	Announces bool
	// Began is the time at which the rank began, and At is the time at which it failed or finished.
	// Both are in nanoseconds since 1970.
	Began, At int64
	Call      string
	// Text is the text of the rank's error. If that is a RankLostError, Lost holds its Ranks.
	Text string
	Lost []int
	// Log holds the rank's log lines. Slowest describes its longest call.
	Log     []string
	Slowest string
	// Starved holds samples of how long the rank's threads had waited for a processor.
	Starved []waitSample
}

// TestKills kills a rank that runs with or without the launcher. In half of the programs, the
// rank is killed in Open, Split, Join, Group.Close or Runtime.Close, and in the other half at
// any moment. Within three seconds, every other rank must get an error that names the killed
// rank. No process, file or socket may remain.
func TestKills(t *testing.T) {
	signalTask{}.test(t, 16, nil)
}

// TestKillsWithTheStore kills a rank and then the rank that serves the store. The third rank
// must get an error that names the rank that was killed first.
func TestKillsWithTheStore(t *testing.T) { signalTask{Store: true}.test(t, 4, nil) }

// TestKillsOnAGPU runs the programs of TestKills on GPUs. In some of them, the ranks pretend to
// be on different machines.
func TestKillsOnAGPU(t *testing.T) {
	skipSlow(t)
	signalTask{GPU: true, Machines: *machinesFlag}.test(t, 8, gpuVariables(t))
}

// TestStops stops a rank for one second or, with -longest=20s, for up to 20 seconds. In half of
// the programs, the rank is stopped in Open, Split or Join, and in the other half at any moment.
// All results must be correct, and no call may return an error. In the second half, every other
// rank must also log a warning that names the stopped rank.
func TestStops(t *testing.T) { signalTask{Longest: *longestFlag}.test(t, 6, nil) }

// TestStopsOnAGPU runs the programs of TestStops on GPUs. It does not check warnings.
func TestStopsOnAGPU(t *testing.T) {
	skipSlow(t)
	signalTask{Longest: *longestFlag, GPU: true}.test(t, 4, gpuVariables(t))
}

func (s signalTask) test(t *testing.T, programs int, env []string) {
	t.Helper()
	run := func(ctx context.Context, number, _ int) error {
		task := s
		task.Seed, task.Program = *seedFlag, number
		return signals(ctx, task, env)
	}
	batch{defaultCount: programs, programsPerWorld: 1, run: run}.test(t)
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
		role: "signals", ranks: p.ranks, task: task, timeLimit: signalLimit + p.stop, onLine: x.onLine,
		folder: folder, variables: env, machines: p.machines,
	}
	result, err := j.run(ctx)
	x.pending.Wait()
	var bad []error
	if err != nil {
		bad = append(bad, err)
	} else {
		victimDied := result.Exits[p.victim].Signal == syscall.SIGKILL
		bad = append(bad, x.verdict(victimDied)...)
	}

	if left := j.leftovers(before); left != "" {
		bad = append(bad, fmt.Errorf("the job left behind: %s", left))
	}

	if len(bad) == 0 {
		return nil
	}

	return fmt.Errorf("program %d: %v: %w\n%s", task.Program, p, errors.Join(bad...), x.text())
}

type signaller struct {
	plan    *signalPlan
	pending sync.WaitGroup // the goroutine that sends the signals

	mu      sync.Mutex
	pids    map[int]int  // process IDs of ranks that have announced their call; guarded by mu
	sent    time.Time    // time of the signal; guarded by mu
	stopErr error        // error of sending signals; guarded by mu
	lines   []signalLine // guarded by mu
	other   []string     // guarded by mu
}

// onLine handles a line from a rank. Once all victims have announced their calls, it sends the
// signals.
func (s *signaller) onLine(line string) {
	var l signalLine
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		s.other = append(s.other, line)
		return
	}

	if !l.Announces {
		s.lines = append(s.lines, l)
		return
	}

	if s.pids[l.Rank] != 0 {
		return // already announced
	}

	s.pids[l.Rank] = l.PID
	victim, secondVictim := s.pids[s.plan.victim], s.pids[s.plan.secondVictim]
	if victim != 0 && (secondVictim != 0 || s.plan.secondVictim < 0) {
		s.pending.Go(func() { s.signal(victim, secondVictim) })
	}
}

func (s *signaller) signal(victim, secondVictim int) {
	<-time.After(s.plan.signalDelay)
	var err error
	switch {
	case s.plan.stop > 0:
		err = syscall.Kill(victim, syscall.SIGSTOP)
		<-time.After(s.plan.stop)
		err = errors.Join(err, syscall.Kill(victim, syscall.SIGCONT))
	case secondVictim != 0:
		err = syscall.Kill(secondVictim, syscall.SIGSTOP)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.stopErr = time.Now(), err
	if s.plan.stop > 0 {
		return
	}

	watch, err := sys.Pidfd(victim)
	if err != nil {
		return // the process has exited
	}
	defer watch.Close()
	_ = syscall.Kill(victim, syscall.SIGKILL) // fails if the process has exited
	if secondVictim != 0 {
		s.stopErr = errors.Join(s.stopErr, sys.AwaitEnd(watch),
			syscall.Kill(secondVictim, syscall.SIGKILL))
	}
}

func (s *signaller) verdict(victimDied bool) (bad []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopErr != nil {
		bad = append(bad, fmt.Errorf("signaling rank %d: %w", s.plan.victim, s.stopErr))
	}

	check := s.checkKilled
	if s.plan.stop > 0 {
		check = s.checkStopped
	}

	reported := map[int]bool{}
	for i := range s.lines {
		l := &s.lines[i]
		reported[l.Rank] = true
		if err := check(l, victimDied); err != nil {
			bad = append(bad, fmt.Errorf("rank %d, in %s: %w", l.Rank, l.Call, err))
		}
	}

	for r := range s.plan.ranks {
		if !reported[r] && r != s.plan.secondVictim && (r != s.plan.victim || s.plan.stop > 0) {
			bad = append(bad, fmt.Errorf("rank %d did not report how it ended", r))
		}
	}

	if len(s.other) > 0 {
		bad = append(bad, fmt.Errorf("other output: %q", s.other))
	}

	return bad
}

func (s *signaller) checkStopped(l *signalLine, _ bool) error {
	warned := slices.ContainsFunc(l.Log, func(text string) bool {
		return mentions(text, s.plan.victim)
	})
	switch {
	case l.Text != "":
		return errors.New(l.Text)
	case l.Rank != s.plan.victim && s.plan.call == anyCall && !s.plan.gpu && !warned:
		return fmt.Errorf("log %q contains no warning about rank %d; %s", l.Log, s.plan.victim, l.Slowest)
	}

	return nil
}

func (s *signaller) checkKilled(l *signalLine, victimDied bool) error {
	p := s.plan
	took := time.Unix(0, l.At).Sub(s.sent)
	inRank := min(took, time.Duration(l.At-l.Began))
	starved := s.starved()
	limit := namingLimit + starved
	if p.gpu && os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		limit = softwareNamingLimit
	}

	if p.noLauncher && p.call == callOpen {
		limit += openTimeout
	}

	switch {
	case l.Rank == p.victim:
		return nil // the victim finished before the signal
	case l.Text == "" && p.call == callRuntimeClose && inRank <= limit:
		return nil // the rank no longer needed the others
	case !victimDied:
		return fmt.Errorf("got an error, although no rank died: %s", l.Text)
	case inRank > limit:
		return fmt.Errorf("finished %v after the kill, want at most %v, including %v without a "+
			"processor: %s", inRank, limit, starved, l.Text)
	case took < 0:
		return fmt.Errorf("got an error before the kill: %s", l.Text)
	case p.noLauncher && p.call == callOpen && mentions(l.Text, p.victim):
		return nil // in Open, the error may be a timeout that names the rank
	case p.secondVictim >= 0 && slices.Contains(l.Lost, p.victim):
		return nil
	case !slices.Equal(l.Lost, []int{p.victim}):
		return fmt.Errorf("want a RankLostError that names only rank %d, got: %s", p.victim, l.Text)
	}

	return nil
}

// starved returns the total time for which ranks have waited for a processor since the signal. It
// adds up the times of all ranks, because a rank may have to wait until another rank has reacted.
func (s *signaller) starved() (sum time.Duration) {
	for i := range s.lines {
		sum += starvedSince(s.lines[i].Starved, s.sent)
	}

	return sum
}

func mentions(text string, rank int) bool {
	return regexp.MustCompile(`ranks? \[?([0-9]+, ?)*` + strconv.Itoa(rank) + `\b`).MatchString(text)
}

func (s *signaller) text() (text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		text += fmt.Sprintf("rank %d in %s after %v: %s\n", l.Rank, l.Call,
			time.Unix(0, l.At).Sub(s.sent), l.Text)
	}

	return text
}
