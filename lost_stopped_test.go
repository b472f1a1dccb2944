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

// TestErrorNamesStoppedRank starts four ranks as processes of this program. All repeat a call, such
// as a split of the world. One of them, the victim, stops itself at a random time with SIGSTOP: its
// process continues to exist but does nothing more. In the other ranks, the call times out. They
// print the error as a lossReport, and the test checks that it names only the victim.

// stoppedVariable marks a process as a rank of TestErrorNamesStoppedRank. Its value is the call
// that the ranks repeat: "join", "split" or "register".
const stoppedVariable = "SYMMEM_TEST_STOPPED"

// stoppedTimeout limits the waits for the victim. On a busy machine, it is long enough for the
// other ranks to begin the same call.
const stoppedTimeout = 4 * time.Second

// runStoppingRank runs this process as a rank of TestErrorNamesStoppedRank and returns its exit
// status.
func runStoppingRank() int {
	number, _ := strconv.Atoi(os.Getenv(rankVariable)) // the test has set both to integers
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: time.Minute,
	}))
	if err == nil {
		// Open itself may take longer, because the victim stops only afterwards.
		err = rt.World().SetTimeout(stoppedTimeout)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	if isVictim() {
		stopSoon()
	}

	for n := 0; err == nil; n++ {
		err = callForStoppedRank(ctx, rt, n)
	}

	_ = json.NewEncoder(os.Stdout).Encode(newTimeoutReport(err)) // the test fails without a report
	rt.Close()                                                   // returns the error again
	return 0
}

// stopSoon stops this process after a random time, in which it makes its first calls.
func stopSoon() {
	const maxDelay = 60 * time.Millisecond
	time.AfterFunc(random.N(maxDelay), func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	})
}

// newTimeoutReport returns a report with the text of err and the ranks for which it waited.
func newTimeoutReport(err error) lossReport {
	report := lossReport{Text: err.Error()}
	var late *symmem.TimeoutError // an AbsentError wraps a TimeoutError
	if errors.As(err, &late) {
		report.Lost = late.Missing
	}

	return report
}

// callForStoppedRank makes the call that stoppedVariable names, after n earlier calls. It closes
// the group or pool that it has created.
func callForStoppedRank(ctx context.Context, rt *symmem.Runtime, n int) error {
	var g *symmem.Group
	var err error
	switch os.Getenv(stoppedVariable) {
	case "join":
		id := fmt.Sprintf("group %d", n)
		options := symmem.GroupOptions{Timeout: stoppedTimeout}
		g, err = rt.JoinWith(ctx, id, rt.World().Ranks(), options)
	case "split":
		g, err = rt.World().Split(ctx, 0, 0)
	default: // "register"
		return registerNewPool(ctx, rt)
	}

	if err != nil {
		return err
	}

	return g.Close()
}

// registerNewPool creates a pool of four segments (parts of its memory), registers them and closes
// the pool. The ranks exchange messages for each segment, so the victim may stop between two
// segments.
func registerNewPool(ctx context.Context, rt *symmem.Runtime) error {
	const segments = 4
	const firstBytes = 2 << 20 // each further segment is twice as large as the previous one
	pool, err := rt.NewPool(symmem.PoolOptions{
		Domain: rt.World(), FirstSegment: firstBytes,
	})
	for i := 0; err == nil && i < segments; i++ {
		_, err = pool.Alloc(firstBytes << i) // fills a new segment
	}

	if err == nil {
		err = pool.Register(ctx, rt.World())
	}

	if err != nil {
		return err
	}

	return pool.Close()
}

// TestErrorNamesStoppedRank stops one of four ranks during each kind of call. The errors of the
// other ranks must name only this rank, even if a rank waits for another one that waits for it.
func TestErrorNamesStoppedRank(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"join", "split", "register"} {
		for _, victim := range []int{0, 2} { // rank 0 is special: it serves the store
			t.Run(fmt.Sprintf("rank %d in %s", victim, call), func(t *testing.T) {
				t.Parallel()
				if call != "register" && withBackend(symmem.Options{}).Backend != "host" {
					t.Skipf("NCCL does not name the ranks that it waits for: %v", symmem.ErrUnsupported)
				}

				checkStoppedRank(t, call, victim)
			})
		}
	}
}

// checkStoppedRank starts four ranks, of which the victim stops, and checks their reports.
func checkStoppedRank(t *testing.T, call string, victim int) {
	t.Helper()
	const ranks = 4
	const noRound = "" // rounds are for other tests
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range ranks {
		processes = append(processes,
			startRank(t, store, noRound, number, ranks, victim, stoppedVariable+"="+call))
	}

	for number := 1; number < ranks; number++ {
		if number != victim {
			checkStoppedReport(t, processes[number], number, victim)
		}
	}

	_ = processes[victim].Process.Kill()
	_ = processes[victim].Wait() // the error says that the process was killed
	// Rank 0 ends last: its Close waits until all other ranks have left.
	if victim != 0 {
		checkStoppedReport(t, processes[0], 0, victim)
	}
}

// checkStoppedReport waits for a rank's process and checks that its report names only the victim.
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
