// Package chaos tests random programs of several processes, with and without faults, through the
// public package symmem.
//
// A program is a list of ops that all ranks perform: allocations, frees, collectives, messages,
// copies, events and graphs. A generator draws the program, with events that order accesses to
// buffers. It may also draw a mistake for one rank to make. A model predicts the contents of all
// buffers and the errors that symmem must report. A player performs the program on one rank, and
// a verdict compares the results with the model. There are several kinds of programs (mistakes,
// messages, uneven, graphs, recoveries), for which the generator draws different ops. The tests
// that kill and stop ranks with signals use simpler programs, and the tests of
// docs/reference/failures.md use a table.
//
// Without flags, each test runs a few dozen programs. Longer runs print their progress:
//
//	go test ./internal/chaos -v -timeout 4h -run Mistakes -programs=1000 -seed=7
//
// The programs of a seed are numbered from 1. Everything random in a program depends only on the
// seed and the program's number. At the first failure, the test ends and prints a command that
// runs the same program again, though the timing of its processes may differ. With -all, the
// test continues and counts the failures.
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
	programsFlag = flag.Int("programs", 0,
		"number of programs; 0 selects a default for each test")
	fromFlag   = flag.Int("from", 1, "number of the first program")
	atOnceFlag = flag.Int("at-once", 2, "number of programs to run at the same time")
	allFlag    = flag.Bool("all", false, "continue after a failure and count failures")
)

var raceDetector bool

// TestMain runs the tests, and fails if they leak goroutines. In a process that a test has
// started as a rank, it performs that rank's role instead.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

type batch struct {
	// programs is the default number of programs.
	programs int
	// perWorld is the number of programs that run in one world, one after another.
	perWorld int
	// run runs the given number of programs, beginning with number first, and returns their
	// failures.
	run func(ctx context.Context, first, programs int) error
}

func newDraws(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)))
}

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
	var slowest slowestProgram
	defer progress(t.Name(), programs, &done, &failed)()
	var workers sync.WaitGroup
	for range min(*atOnceFlag, programs) {
		workers.Go(func() {
			for ctx.Err() == nil {
				begun := int(next.Add(int64(b.perWorld))) - b.perWorld
				if begun >= programs {
					return
				}
				first, n := *fromFlag+begun, min(b.perWorld, programs-begun)
				start := time.Now()
				err := b.run(ctx, first, n)
				if err != nil && ctx.Err() != nil {
					return // canceled because another program failed
				}
				slowest.record(first, time.Since(start))
				done.Add(int64(n))
				if err == nil {
					continue
				}
				failed.Add(1)
				t.Errorf("seed %d: %v\nto repeat it: %s", *seedFlag, err, repeatCommand(t, first, n))
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

func repeatCommand(t *testing.T, first, programs int) string {
	return fmt.Sprintf("go test ./internal/chaos -v -count=1 -run '^%s$' "+
		"-seed=%d -from=%d -programs=%d", t.Name(), *seedFlag, first, programs)
}

const progressEvery = 5 * time.Second

// progress prints the progress of a test at regular intervals if testing is verbose. stop prints
// a last line and ends the printing.
func progress(name string, programs int, done, failed *atomic.Int64) (stop func()) {
	if !testing.Verbose() {
		return func() {}
	}
	start := time.Now()
	line := func() {
		fmt.Printf("%s: %d of %d programs, %d failed, %v\n", name, done.Load(), programs,
			failed.Load(), time.Since(start).Round(time.Second))
	}
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				line()
			case <-stopping:
				return
			}
		}
	}()
	return func() {
		close(stopping)
		<-stopped
		line()
	}
}

type slowestProgram struct {
	mu     sync.Mutex
	number int           // guarded by mu
	took   time.Duration // guarded by mu
}

func (s *slowestProgram) record(number int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took > s.took {
		s.number, s.took = number, took
	}
}

func (s *slowestProgram) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("program %d took longest, %v", s.number, s.took.Round(time.Millisecond))
}
