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

// stoppedVariable marks a process as a rank of TestErrorNamesStoppedRank. Its value is the call
// that the ranks repeat: "join", "split" or "register".
const stoppedVariable = "SYMMEM_TEST_STOPPED"

// stoppedTimeout limits the waits for the stopped rank. It is long enough for the other ranks to
// begin the same call on a busy machine.
const stoppedTimeout = 4 * time.Second

// runStoppingRank runs this process as a rank of TestErrorNamesStoppedRank and returns its exit
// status. All ranks repeat a call. The victim stops itself at a random time, with SIGSTOP, so that
// its process does not end. The other ranks repeat the call until it fails, and print a lossReport
// with the ranks that the error names.
func runStoppingRank() int {
	number, _ := strconv.Atoi(os.Getenv(rankVariable)) // the test has set both to integers
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: time.Minute,
	}))
	if err == nil {
		// Only the calls that the victim may miss have a short timeout.
		err = rt.World().SetTimeout(stoppedTimeout)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	if isVictim() {
		stopDelay := random.N(60 * time.Millisecond) // within the first calls
		time.AfterFunc(stopDelay, func() {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		})
	}

	for n := 0; err == nil; n++ {
		err = callForStoppedRank(ctx, rt, n)
	}

	report := lossReport{Text: err.Error()}
	var late *symmem.TimeoutError // an AbsentError wraps a TimeoutError
	if errors.As(err, &late) {
		report.Lost = late.Missing
	}

	_ = json.NewEncoder(os.Stdout).Encode(report) // without a report, the test fails
	rt.Close()                                    // returns the fault again
	return 0
}

// callForStoppedRank makes the call that stoppedVariable names. n counts the earlier calls.
func callForStoppedRank(ctx context.Context, rt *symmem.Runtime, n int) error {
	var g *symmem.Group
	var err error
	switch os.Getenv(stoppedVariable) {
	case "join":
		g, err = rt.JoinWith(ctx, fmt.Sprintf("group %d", n), rt.World().Ranks(),
			symmem.GroupOptions{Timeout: stoppedTimeout})
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

// registerNewPool creates a pool of four segments, registers them and closes the pool. The ranks
// exchange messages for each segment, so the victim may stop between them.
func registerNewPool(ctx context.Context, rt *symmem.Runtime) error {
	const firstBytes, segments = 2 << 20, 4 // each segment is twice as large as the previous one
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

// TestErrorNamesStoppedRank stops one of four ranks. The timeouts of the other ranks must name
// only the stopped rank, even if a rank waits for another one that waits for the stopped rank.
func TestErrorNamesStoppedRank(t *testing.T) {
	t.Parallel()
	const ranks = 4
	for _, call := range []string{"join", "split", "register"} {
		for _, victim := range []int{0, 2} { // rank 0 is special: it serves the store
			t.Run(fmt.Sprintf("rank %d in %s", victim, call), func(t *testing.T) {
				t.Parallel()
				if call != "register" && withBackend(symmem.Options{}).Backend != "host" {
					t.Skipf("NCCL does not name the ranks that it waits for: %v", symmem.ErrUnsupported)
				}

				store := "unix:@symmem-test-" + rand.Text()
				var all []*exec.Cmd
				const noRound = "" // no round of another test
				for number := range ranks {
					all = append(all,
						startRank(t, store, noRound, number, ranks, victim, stoppedVariable+"="+call))
				}

				for number := 1; number < ranks; number++ {
					if number != victim {
						checkStoppedReport(t, all[number], number, victim)
					}
				}

				_ = all[victim].Process.Kill()
				_ = all[victim].Wait() // the error says that the process was killed
				// Rank 0 ends last: its Close waits until all other ranks have left.
				if victim != 0 {
					checkStoppedReport(t, all[0], 0, victim)
				}
			})
		}
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
