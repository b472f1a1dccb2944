// Package chaos tests random programs of several processes, with and without faults, through the
// public package symmem.
//
// A program is a list of ops that all ranks perform: allocations, frees, collectives, messages,
// copies, events and graphs. A generator draws it, with events that order accesses to buffers, and
// possibly with a mistake of one rank. A model predicts the contents of buffers and the errors. A
// player performs the program on one rank, and a verdict compares the results with the model.
// Kinds of programs (mistakes, messages, uneven, graphs, recoveries) have different ops. Tests
// with signals use simpler programs, and those of docs/reference/failures.md use a table.
//
// Without flags, a test runs a few dozen programs. Longer runs print their progress:
//
//	go test ./internal/chaos -v -timeout 4h -run Mistakes -programs=1000 -seed=7
//
// A program depends only on the seed and its number, from 1. At the first failure, the test ends
// and prints a command that runs the program again, though the timing may differ. With -all, it
// continues and counts the failures.
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

var isRaceDetectorOn bool // set in a file that is compiled only with -race

// TestMain runs the tests and fails if they leak goroutines. In a process that a test has started
// as a rank of a program, TestMain performs the rank's part instead.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}

	goleak.VerifyTestMain(m)
}

// batch describes how a test runs programs of one kind.
type batch struct {
	defaultCount int // number of programs without the flag -programs
	// programsPerWorld is the number of programs that run one after another in one world, a job of
	// several processes.
	programsPerWorld int
	// run runs the given number of programs, beginning with number first, in one world. It returns
	// their failures. It is called by several goroutines at the same time.
	run func(ctx context.Context, first, programs int) error
}

// newDraws returns the source of the random choices that make up the program with a number.
func newDraws(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)))
}

// test runs the programs that the flags select, several at the same time.
func (b batch) test(t *testing.T) {
	t.Helper()
	programs := *programsFlag
	if programs == 0 {
		programs = b.defaultCount
	}

	t.Logf("seed %d, programs %d to %d", *seedFlag, *fromFlag, *fromFlag+programs-1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begun, done atomic.Int64 // numbers of programs
	var failed atomic.Int64      // number of failed calls of run
	var slowest slowestProgram
	stopProgress := startProgress(t.Name(), programs, &done, &failed)
	defer stopProgress()
	var workers sync.WaitGroup
	for range min(*atOnceFlag, programs) {
		workers.Go(func() {
			for ctx.Err() == nil {
				// Take the next programs of a world. earlier is the number of programs before them.
				earlier := int(begun.Add(int64(b.programsPerWorld))) - b.programsPerWorld
				if earlier >= programs {
					return
				}

				first := *fromFlag + earlier
				n := min(b.programsPerWorld, programs-earlier)
				start := time.Now()
				err := b.run(ctx, first, n)
				if err != nil && ctx.Err() != nil {
					return // canceled, because another program failed
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

// repeatCommand returns a command that runs the given programs again.
func repeatCommand(t *testing.T, first, programs int) string {
	return fmt.Sprintf("go test ./internal/chaos -v -count=1 -run '^%s$' "+
		"-seed=%d -from=%d -programs=%d", t.Name(), *seedFlag, first, programs)
}

const progressInterval = 5 * time.Second

// startProgress prints the progress of a verbose test at regular intervals until stop is called,
// which prints a last line.
func startProgress(name string, programs int, done, failed *atomic.Int64) (stop func()) {
	if !testing.Verbose() {
		return func() {}
	}

	start := time.Now()
	printLine := func() {
		fmt.Printf("%s: %d of %d programs, %d failed, %v\n", name, done.Load(), programs,
			failed.Load(), time.Since(start).Round(time.Second))
	}
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				printLine()
			case <-stopping:
				return
			}
		}
	}()
	return func() {
		close(stopping)
		<-stopped
		printLine()
	}
}

// slowestProgram records which program, or series of programs in one world, took longest.
type slowestProgram struct {
	mu       sync.Mutex
	number   int           // of the first program; guarded by mu
	duration time.Duration // guarded by mu
}

func (s *slowestProgram) record(number int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took > s.duration {
		s.number, s.duration = number, took
	}
}

func (s *slowestProgram) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("program %d took longest, %v", s.number, s.duration.Round(time.Millisecond))
}
