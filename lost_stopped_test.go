package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	random "math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"symmem"
)

// Four processes, one per rank, repeat a call until one process, the victim, stops with SIGSTOP.
// The other ranks time out and print the ranks that they have waited for.

// stoppedVariable names the call to repeat. If it is set, the test binary runs one rank.
const stoppedVariable = "SYMMEM_TEST_STOPPED"

// Values of stoppedVariable.
const (
	joinCall     = "join"
	splitCall    = "split"
	registerCall = "register"
)

// repeatedCallTimeout is long enough for all running ranks to begin the same call.
const repeatedCallTimeout = 4 * time.Second

func runStoppingRank() (exitStatus int) {
	// rankCommand has formatted these integers.
	number, _ := strconv.Atoi(os.Getenv(rankVariable))
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: time.Minute,
	}))
	if err == nil {
		// Open may take longer than repeatedCallTimeout.
		err = rt.World().SetTimeout(repeatedCallTimeout)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	if isVictim() {
		stopSoon()
	}

	for n := 0; err == nil; n++ {
		err = makeNumberedCall(ctx, rt, n)
	}

	_ = json.NewEncoder(os.Stdout).Encode(newTimeoutReport(err)) // a missing report fails the test
	rt.Close()                                                   // returns err again
	return 0
}

// stopSoon stops this process after a random delay, during any of its calls.
func stopSoon() {
	const maxDelay = 60 * time.Millisecond
	time.AfterFunc(random.N(maxDelay), func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	})
}

func newTimeoutReport(err error) lossReport {
	report := lossReport{Text: err.Error()}
	var late *symmem.TimeoutError // also matches an AbsentError
	if errors.As(err, &late) {
		report.Lost = late.Missing
	}

	return report
}

// makeNumberedCall makes the call named by stoppedVariable, and closes the group or pool that the
// call has created.
func makeNumberedCall(ctx context.Context, rt *symmem.Runtime, n int) error {
	var g *symmem.Group
	var err error
	switch os.Getenv(stoppedVariable) {
	case registerCall:
		return registerNewPool(ctx, rt)
	case joinCall:
		id := fmt.Sprintf("group %d", n)
		options := symmem.GroupOptions{Timeout: repeatedCallTimeout}
		g, err = rt.JoinWith(ctx, id, rt.World().Ranks(), options)
	case splitCall:
		const color, order = 0, 0 // for one group of all ranks
		g, err = rt.World().Split(ctx, color, order)
	}

	if err != nil {
		return err
	}

	return g.Close()
}

// registerNewPool registers several segments, so that the victim may stop between two segments.
func registerNewPool(ctx context.Context, rt *symmem.Runtime) error {
	const segments = 4
	const firstBytes = 2 << 20 // the pool doubles the size of each further segment
	pool, err := rt.NewPool(symmem.PoolOptions{
		Domain: rt.World(), FirstSegment: firstBytes,
	})
	if err != nil {
		return err
	}

	for i := range segments {
		segmentBytes := int64(firstBytes) << i
		if _, err := pool.Alloc(segmentBytes); err != nil { // fills a new segment
			return err
		}
	}

	if err := pool.Register(ctx, rt.World()); err != nil {
		return err
	}

	return pool.Close()
}

// Errors name only the stopped rank, not the ranks that wait for it.
func TestErrorNamesStoppedRank(t *testing.T) {
	t.Parallel()
	for _, call := range []string{joinCall, splitCall, registerCall} {
		for _, victim := range []int{0, 2} { // rank 0 serves the store
			t.Run(fmt.Sprintf("rank %d in %s", victim, call), func(t *testing.T) {
				t.Parallel()
				if call != registerCall && !isHost() {
					t.Skipf("NCCL does not name the ranks that it waits for: %v", symmem.ErrUnsupported)
				}

				checkStoppedRank(t, call, victim)
			})
		}
	}
}

func checkStoppedRank(t *testing.T, call string, victim int) {
	t.Helper()
	const ranks = 4
	const noRound = ""
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range ranks {
		processes = append(processes,
			startRank(t, store, noRound, number, ranks, victim, stoppedVariable+"="+call))
	}

	// Rank 0 exits after all other ranks.
	for number := 1; number < ranks; number++ {
		if number != victim {
			checkStoppedReport(t, processes[number], number, victim)
		}
	}

	_ = processes[victim].Process.Kill()
	_ = processes[victim].Wait() // the error says that the process was killed
	if victim != 0 {
		checkStoppedReport(t, processes[0], 0, victim)
	}
}

func checkStoppedReport(t *testing.T, c *exec.Cmd, number, victim int) {
	t.Helper()
	exitErr := c.Wait()
	out := c.Stdout.(*bytes.Buffer).Bytes()
	if exitErr != nil {
		t.Errorf("rank %d failed: %v\n%s", number, exitErr, out)
		return
	}

	var report lossReport
	err := json.Unmarshal(out, &report)
	if err != nil || !slices.Equal(report.Lost, []int{victim}) {
		t.Errorf("rank %d: got error %v and report %s, want a report that names only rank %d", number,
			err, out, victim)
	}
}
