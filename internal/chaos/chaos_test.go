// Package chaos runs random programs on jobs of several processes, called ranks, and checks the
// results and errors of the public package symmem.
//
// Every rank performs the same ops, such as collectives, copies and graph launches. A model
// predicts the results and errors of each rank. One rank may make a deliberate mistake, such as
// skipping an op.
//
// Flags select longer runs:
//
//	go test ./internal/chaos -v -timeout 4h -run Mistakes -programs=1000 -seed=7
//
// The seed and the program's number determine the ops, but not their timing. A test stops at the
// first failure, unless -all is set, and prints a command that repeats the program.
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
	fromFlag     = flag.Int("from", 1, "number of the first program")
	atOnceFlag   = flag.Int("at-once", 2, "number of programs to run at the same time")
	allFlag      = flag.Bool("all", false, "continue after a failure and count failures")
	machinesFlag = flag.Int("machines", 1,
		"number of machines on which the ranks of a world on GPUs pretend to run")
)

var isRaceDetectorOn bool // set in race_test.go

// TestMain runs the tests, unless a test has started this process as a rank.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}

	goleak.VerifyTestMain(m)
}

// batch describes how a test runs programs of one kind. It starts worlds, which are jobs that run a
// few programs one after another.
type batch struct {
	defaultCount     int // number of programs without the flag -programs
	programsPerWorld int
	// run runs consecutive programs in a new world and returns their failures. It must be safe for
	// concurrent use.
	run func(ctx context.Context, first, count int) error
}

// newDraws returns the random source for a program.
func newDraws(seed uint64, number int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(number)))
}

// test runs the programs that the flags select.
func (b batch) test(t *testing.T) {
	t.Helper()
	r := batchRun{batch: b, programs: *programsFlag}
	if r.programs == 0 {
		r.programs = b.defaultCount
	}

	t.Logf("seed %d, programs %d to %d", *seedFlag, *fromFlag, *fromFlag+r.programs-1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopProgress := startProgress(t.Name(), r.programs, &r.done, &r.failed)
	defer stopProgress()
	var workers sync.WaitGroup
	for range min(*atOnceFlag, r.programs) {
		workers.Go(func() { r.work(ctx, t, cancel) })
	}

	workers.Wait()
	t.Logf("%v", &r.slowest)
	if n := r.failed.Load(); n > 0 {
		t.Errorf("%d of %d programs failed", n, r.done.Load())
	}
}

// batchRun is a batch in progress, shared by its workers.
type batchRun struct {
	batch
	programs int
	reserved atomic.Int64 // number of programs that workers have reserved
	done     atomic.Int64 // number of programs in worlds that have ended
	failed   atomic.Int64 // number of failed programs, at most one per world
	slowest  slowestWorld
}

// work runs one world after another until no program is left. It calls stopAll after a failure.
func (r *batchRun) work(ctx context.Context, t *testing.T, stopAll func()) {
	for ctx.Err() == nil {
		first, count := r.reserveWorld()
		if count == 0 {
			return
		}

		start := time.Now()
		err := r.run(ctx, first, count)
		hasOtherWorkerFailed := ctx.Err() != nil
		if err != nil && hasOtherWorkerFailed {
			return
		}

		r.slowest.record(first, time.Since(start))
		r.done.Add(int64(count))
		if err == nil {
			continue
		}

		r.failed.Add(1)
		t.Errorf("seed %d: %v\nto repeat it: %s", *seedFlag, err, repeatCommand(t, first, count))
		if !*allFlag {
			stopAll()
		}
	}
}

// reserveWorld returns the number of the next program and the count of programs in its world. The
// count is 0 if no program is left.
func (r *batchRun) reserveWorld() (first, count int) {
	end := int(r.reserved.Add(int64(r.programsPerWorld)))
	start := end - r.programsPerWorld
	return *fromFlag + start, max(0, min(end, r.programs)-start)
}

func repeatCommand(t *testing.T, first, programs int) string {
	return fmt.Sprintf("go test ./internal/chaos -v -count=1 -run '^%s$' "+
		"-seed=%d -from=%d -programs=%d", t.Name(), *seedFlag, first, programs)
}

const progressInterval = 5 * time.Second

// startProgress prints the progress of a verbose test every progressInterval until stop is called.
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

type slowestWorld struct {
	mu           sync.Mutex
	firstProgram int           // guarded by mu
	duration     time.Duration // guarded by mu
}

func (s *slowestWorld) record(firstProgram int, duration time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if duration > s.duration {
		s.firstProgram, s.duration = firstProgram, duration
	}
}

func (s *slowestWorld) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("the world of program %d took longest, %v", s.firstProgram,
		s.duration.Round(time.Millisecond))
}
