package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem"
)

var longestFlag = flag.Duration("longest", time.Second, "the longest stop of a rank, from 1s on")

// stopsTask is what a rank is told.
type stopsTask struct {
	Seed    uint64
	Program int
	Longest time.Duration
}

// stopPlan says when which rank is stopped, and for how long.
type stopPlan struct {
	ranks, victim int
	bare          bool
	after, stop   time.Duration
}

// shortestStop is the shortest stop of a rank.
const shortestStop = time.Second

func (t *stopsTask) plan() *stopPlan {
	d := newDraws(t.Seed, t.Program)
	p := &stopPlan{
		ranks: 2 + d.IntN(3), bare: d.IntN(2) == 0,
		after: time.Duration(d.IntN(int(300 * time.Millisecond))),
		stop:  shortestStop + time.Duration(d.Int64N(int64(max(t.Longest-shortestStop, 0)+1))),
	}
	p.victim = d.IntN(p.ranks)
	return p
}

func (p *stopPlan) String() string {
	return fmt.Sprintf("rank %d of %d stopped after %v for %v, without the launcher: %v", p.victim,
		p.ranks, p.after, p.stop, p.bare)
}

const (
	// stopTimeout is Options.Timeout.
	stopTimeout = time.Minute
	// stopLimit is how long a program may take in addition to the stop.
	stopLimit = 60 * time.Second
	// stopRest is how long the ranks work on after the stop.
	stopRest = 200 * time.Millisecond
	// stopWarn is Options.WarnAfter.
	stopWarn = 200 * time.Millisecond
)

// stopLine is what a rank writes: that it may be stopped, or how it ended.
type stopLine struct {
	Rank, PID int
	Announces bool
	// Rounds is how many there were, Bad what was not right, and Warnings what was logged.
	Rounds   int
	Bad      []string
	Warnings []string
	// Slowest is the call that took longest, and Took how long.
	Slowest string
	Took    time.Duration
}

// call makes a call and notes how long it takes.
func (l *stopLine) call(name string, call func() error) error {
	begun := time.Now()
	err := call()
	if took := time.Since(begun); took > l.Took {
		l.Slowest, l.Took = fmt.Sprintf("%s of round %d", name, l.Rounds), took
	}
	return err
}

// TestStops stops a rank with SIGSTOP for a second, or, with -longest=20s, for up to twenty, and
// lets it go on. Every result must be right afterwards, and nobody may be told of an error.
func TestStops(t *testing.T) {
	bar{programs: 4, each: 1, run: stops}.meet(t)
}

func stops(ctx context.Context, number, _ int) error {
	task := stopsTask{Seed: *seedFlag, Program: number, Longest: *longestFlag}
	p := task.plan()
	w := &stopper{plan: p}
	j := job{
		role: "stops", ranks: p.ranks, task: task, limit: stopLimit + p.stop, hear: w.hear,
		bare: p.bare,
	}
	_, err := j.run(ctx)
	w.pending.Wait()
	bad := append([]error{err}, w.verdict()...)
	if err := errors.Join(bad...); err != nil {
		return fmt.Errorf("program %d: %v: %w", number, p, err)
	}
	return nil
}

// stopper stops the victim and lets it go on, and collects what the ranks say.
type stopper struct {
	plan    *stopPlan
	pending sync.WaitGroup // the stop

	mu    sync.Mutex
	lines []stopLine // guarded by mu
	other []string   // guarded by mu
	// failed is why the rank was not stopped; guarded by mu.
	failed error
}

func (w *stopper) hear(line string) {
	var l stopLine
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		w.other = append(w.other, line)
		return
	}
	if !l.Announces {
		w.lines = append(w.lines, l)
		return
	}
	w.pending.Go(func() {
		<-time.After(w.plan.after)
		err := syscall.Kill(l.PID, syscall.SIGSTOP)
		<-time.After(w.plan.stop)
		err = errors.Join(err, syscall.Kill(l.PID, syscall.SIGCONT))
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failed = err
	})
}

// verdict is what is wrong about what the ranks say.
func (w *stopper) verdict() (bad []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		bad = append(bad, fmt.Errorf("stopping rank %d: %w", w.plan.victim, w.failed))
	}
	if len(w.lines) != w.plan.ranks || len(w.other) > 0 {
		bad = append(bad, fmt.Errorf("%d ranks have reported; %q", len(w.lines), w.other))
	}
	for _, l := range w.lines {
		if len(l.Bad) > 0 {
			bad = append(bad, fmt.Errorf("rank %d, round %d: %s", l.Rank, l.Rounds,
				strings.Join(l.Bad, "; ")))
		}
		named := slices.ContainsFunc(l.Warnings, func(text string) bool {
			return mentions(text, w.plan.victim)
		})
		if l.Rank != w.plan.victim && !named {
			bad = append(bad, fmt.Errorf("rank %d has not warned of rank %d: %q; %s took %v", l.Rank,
				w.plan.victim, l.Warnings, l.Slowest, l.Took))
		}
	}
	return bad
}

// stopsRank is the main function of a rank.
func stopsRank(text []byte) error {
	var task stopsTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	p := task.plan()
	var log logged
	o, err := placed(symmem.Options{
		Backend: "host", Timeout: stopTimeout, WarnAfter: stopWarn,
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		return err
	}
	rt, err := symmem.Open(context.Background(), o)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if rt.Rank() == p.victim {
		err := out.Encode(stopLine{Rank: rt.Rank(), PID: os.Getpid(), Announces: true})
		if err != nil {
			return err
		}
	}
	line := stopLine{Rank: rt.Rank()}
	ends := time.Now().Add(p.after + p.stop + stopRest)
	for more := true; more && len(line.Bad) == 0; line.Rounds++ {
		more, err = stopsRound(rt, &line, ends)
		if err != nil {
			line.Bad = append(line.Bad, err.Error())
		}
	}
	if err := rt.Close(); err != nil && len(line.Bad) == 0 {
		line.Bad = append(line.Bad, fmt.Sprintf("closing: %v", err))
	}
	line.Warnings = log.lines()
	return out.Encode(line)
}

// logged keeps what is logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logged) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// stopsRound adds something up in the world and now and then in a new group, and reports whether
// the ranks go on: rank 0 looks at the clock.
func stopsRound(rt *symmem.Runtime, line *stopLine, ends time.Time) (more bool, err error) {
	world := rt.World()
	got, err := stopsSum(rt, world, line, "the world", ends)
	if err != nil {
		return false, err
	}
	if line.Rounds%16 == 0 {
		var g *symmem.Group
		err := line.call("Split", func() (err error) {
			g, err = world.Split(context.Background(), 0, -rt.Rank())
			return err
		})
		if err != nil {
			return false, err
		}
		if _, err := stopsSum(rt, g, line, "the split", ends); err != nil {
			return false, err
		}
		if err := line.call("Group.Close", g.Close); err != nil {
			return false, err
		}
	}
	return got == 0, nil
}

// stopsElements is the length of a sum, without the element that says whether rank 0 goes on.
const stopsElements = 1000

// stopsSum checks a sum, of which it returns the last element.
func stopsSum(
	rt *symmem.Runtime, g *symmem.Group, line *stopLine, name string, ends time.Time,
) (last int64, err error) {
	data := make([]int64, stopsElements+1)
	for i := range data[:stopsElements] {
		data[i] = stopsPart(rt.Rank(), line.Rounds, i)
	}
	if rt.Rank() == 0 && time.Now().After(ends) {
		data[stopsElements] = 1
	}
	m := symmem.Host(data)
	s := rt.DefaultStream()
	err = line.call("AllReduce in "+name, func() error {
		ctx, n := context.Background(), int64(len(data))
		err := g.AllReduce(ctx, m, m, n, symmem.Int64, symmem.Sum, s)
		if err == nil {
			err = s.Synchronize(ctx)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for i, x := range data[:stopsElements] {
		var want int64
		for r := range rt.Size() {
			want += stopsPart(r, line.Rounds, i)
		}
		if x != want {
			return 0, fmt.Errorf("wrong: element %d is %d, want %d", i, x, want)
		}
	}
	return data[stopsElements], nil
}

func stopsPart(rank, round, i int) int64 {
	return int64(rank+1)*1_000_003 + int64(round)*1_009 + int64(i)
}
