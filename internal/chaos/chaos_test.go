// Package chaos tests random programs of several processes, with and without faults, through the
// public package symmem.
//
// A program is a list of ops that all ranks share: allocations, frees, collectives, messages,
// copies, events, graphs. A generator draws it, orders its accesses to buffers by events, and may
// draw a mistake of one rank. A model predicts the contents of all buffers and the errors that must
// be reported. A player performs the program on one rank, and a verdict compares. The kinds of
// programs (erring, messages, uneven, graphs, recoveries) differ in their draws. Kills and stops
// have a simpler program, and the page of failures has a table.
//
// Without flags each test runs a few dozen programs. Longer runs print their progress:
//
//	go test ./internal/chaos -v -timeout 4h -run Erring -programs=1000 -seed=7
//
// The programs of a seed are numbered from 1. Each is drawn from the seed and its number alone. The
// first failure ends the test and prints the command that repeats the program; its draws are the
// same then, the timing of the processes is not. With -all the test continues, and counts failures.
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
	seedFlag     = flag.Uint64("seed", 1, "seed of all draws")
	programsFlag = flag.Int("programs", 0, "how many programs to run; 0 is a few dozen")
	fromFlag     = flag.Int("from", 1, "number of the first program")
	atOnceFlag   = flag.Int("at-once", 2, "how many programs run at the same time")
	allFlag      = flag.Bool("all", false, "continue after a failure, and count failures")
)

// racing reports whether this run has the race detector.
var racing bool

// TestMain runs the tests and fails if they leak goroutines. In a process that a test has started
// as a rank, it runs the rank.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(beRank(role))
	}
	goleak.VerifyTestMain(m)
}

// batch runs the programs of a test.
type batch struct {
	// programs is the default number of programs.
	programs int
	// each is the number of programs that the same processes run, one after the other.
	each int
	// run runs a number of programs and returns their failures.
	run func(ctx context.Context, first, programs int) error
}

// newDraws returns the draws of a program.
func newDraws(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)))
}

// test runs the programs.
func (b batch) test(t *testing.T) {
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
	defer progress(t.Name(), programs, &done, &failed)()
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
				t.Errorf("seed %d: %v\nto repeat it: %s", *seedFlag, err, again(t, first, n))
				if !*allFlag {
					cancel()
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%v", &slowest)
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d programs failed", n, done.Load())
	}
}

// again returns the command that repeats programs.
func again(t *testing.T, first, programs int) string {
	return fmt.Sprintf("go test ./internal/chaos -v -count=1 -run '^%s$' "+
		"-seed=%d -from=%d -programs=%d", t.Name(), *seedFlag, first, programs)
}

// progressEvery is the interval between the lines of progress.
const progressEvery = 5 * time.Second

// progress prints lines about a verbose test until stop is called, and then a last one.
func progress(name string, programs int, done, failed *atomic.Int64) (stop func()) {
	if !testing.Verbose() {
		return func() {}
	}
	start := time.Now()
	line := func() {
		fmt.Printf("%s: %d of %d programs, %d failed, %v\n", name, done.Load(), programs,
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

// longest records the program that took the most time.
type longest struct {
	mu     sync.Mutex
	number int           // guarded by mu
	took   time.Duration // guarded by mu
}

// note records the time of a program.
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
