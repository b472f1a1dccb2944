// Package chaos holds tests alone: random programs of several processes in which things go wrong,
// or of which nothing may go wrong, and which are compared with arithmetic of their own. They use
// the public package symmem as any program does, and nothing of what is behind it; those of graphs
// call CUDA, as another library in the process would.
//
// Without flags each test runs a few dozen programs. The whole of one, which goes on for minutes or
// hours, says how far it is:
//
//	go test ./internal/chaos -v -timeout 4h -run Erring -programs=1000 -seed=7
//
// The programs of a seed are numbered from 1, and each is drawn from the seed and its number alone.
// The first that goes wrong ends the test and is named with the line that runs it again; its draws
// are the same then, the processes' timing is not. With -all the test goes on, and counts.
package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag     = flag.Uint64("seed", 1, "where all draws come from")
	programsFlag = flag.Int("programs", 0, "how many programs to run; 0 is a few dozen")
	fromFlag     = flag.Int("from", 1, "number of the first program")
	atOnceFlag   = flag.Int("at-once", 2, "how many programs run at the same time")
	allFlag      = flag.Bool("all", false, "go on after a program that went wrong, and count them")
)

// racing reports whether this run has the race detector.
var racing bool

// TestMain runs the tests and fails if any of them leaves a goroutine behind. In a process that a
// test started as a rank it is that rank instead.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(beRank(role))
	}
	goleak.VerifyTestMain(m)
}

// bar is a kind of programs, and how many of them a test without flags runs.
type bar struct {
	programs int
	// each is how many programs the same processes run, one after the other.
	each int
	// run runs programs from a number on, and returns what went wrong.
	run func(ctx context.Context, first, programs int) error
}

// newDraws are the draws of a program.
func newDraws(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)))
}

// meet runs the programs.
func (b bar) meet(t *testing.T) {
	t.Helper()
	programs := *programsFlag
	if programs == 0 {
		programs = b.programs
	}
	t.Logf("seed %d, programs %d to %d", *seedFlag, *fromFlag, *fromFlag+programs-1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var next, done, failed atomic.Int64
	var slowest longest
	defer say(t.Name(), programs, &done, &failed)()
	var workers sync.WaitGroup
	for range min(*atOnceFlag, programs) {
		workers.Go(func() {
			for ctx.Err() == nil {
				begun := int(next.Add(int64(b.each))) - b.each
				if begun >= programs {
					return
				}
				first, n := *fromFlag+begun, min(b.each, programs-begun)
				start := time.Now()
				err := b.run(ctx, first, n)
				if err != nil && ctx.Err() != nil {
					return // the program was cut short
				}
				slowest.note(first, time.Since(start))
				done.Add(int64(n))
				if err == nil {
					continue
				}
				failed.Add(1)
				t.Errorf("seed %d: %v\nrun it again: %s", *seedFlag, err, again(t, first, n))
				if !*allFlag {
					cancel()
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%v", &slowest)
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d programs went wrong", n, done.Load())
	}
}

// again is the command that runs programs once more.
func again(t *testing.T, first, programs int) string {
	return fmt.Sprintf("go test ./internal/chaos -v -count=1 -run '^%s$' "+
		"-seed=%d -from=%d -programs=%d", t.Name(), *seedFlag, first, programs)
}

// progressEvery is how often a line says how far a verbose test is.
const progressEvery = 5 * time.Second

// say writes such lines until the function is called that it returns, and then a last one.
func say(name string, programs int, done, failed *atomic.Int64) (stop func()) {
	if !testing.Verbose() {
		return func() {}
	}
	start := time.Now()
	line := func() {
		fmt.Printf("%s: %d of %d programs, %d went wrong, %v\n", name, done.Load(), programs,
			failed.Load(), time.Since(start).Round(time.Second))
	}
	ended, silent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(silent)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				line()
			case <-ended:
				return
			}
		}
	}()
	return func() {
		close(ended)
		<-silent
		line()
	}
}

// longest is the program that took the most time.
type longest struct {
	mu     sync.Mutex
	number int           // guarded by mu
	took   time.Duration // guarded by mu
}

func (l *longest) note(number int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if took > l.took {
		l.number, l.took = number, took
	}
}

func (l *longest) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("program %d took longest, %v", l.number, l.took.Round(time.Millisecond))
}
