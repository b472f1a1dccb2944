package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys/systest"
)

// A test sets these environment variables in the processes that it starts as ranks.
const (
	victimVariable = "SYMMEM_TEST_VICTIM" // the rank that dies
	roundVariable  = "SYMMEM_TEST_ROUND"  // the round in which it dies
	rankVariable   = "SYMMEM_TEST_RANK"
	sizeVariable   = "SYMMEM_TEST_SIZE"
	storeVariable  = "SYMMEM_TEST_STORE"
)

const (
	// lostRanks is the size of a world that loses a rank. Each rank needs a device.
	lostRanks = 3
	// roundsBefore is the number of rounds before the one in which the victim dies.
	roundsBefore = 5
)

// lossReport describes how a surviving rank learned of the lost rank, and whether it could then
// work with the other survivors.
type lossReport struct {
	Lost  []int  `json:"lost"`
	Text  string `json:"text"`
	After string `json:"after"`
	// Mapped names the memory that is still mapped after Close.
	Mapped []string `json:"mapped"`
}

func isVictim() bool { return os.Getenv(victimVariable) == os.Getenv(rankVariable) }

func die() { syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// runLosingRank runs this process as a rank that works until a rank is lost, and prints a
// lossReport.
func runLosingRank() int {
	report, err := work(context.Background())
	if err == nil {
		report.Mapped, err = mappedFiles()
	}

	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// mappedFiles lists the anonymous files that this process maps: the memory of symmem and that of
// the software GPU.
func mappedFiles() (mapped []string, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:") {
			mapped = append(mapped, strings.TrimSpace(line))
		}
	}

	return mapped, err
}

// lostTimeout is the timeout of the ranks. They must report a lost rank long before.
const lostTimeout = time.Minute

// work runs rounds until a rank is lost, and then works with the survivors.
func work(ctx context.Context) (*lossReport, error) {
	number, err := strconv.Atoi(os.Getenv(rankVariable))
	if err != nil {
		return nil, err
	}

	size, err := strconv.Atoi(os.Getenv(sizeVariable))
	if err != nil {
		return nil, err
	}

	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: lostTimeout,
	}))
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	var survivors *symmem.Group
	if isVictim() {
		err = rt.World().SkipSplit(ctx)
	} else {
		survivors, err = rt.World().Split(ctx, 0, 0)
	}

	if err != nil {
		return nil, err
	}

	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 8 * mib})
	if err != nil {
		return nil, err
	}

	err = untilLost(ctx, rt, p)
	paths := rt.World().Stats().Paths
	if rounds[os.Getenv(roundVariable)].direct &&
		(paths["direct"] == 0 || paths["window"] != 0 || paths["plain"] != 0) {
		return nil, fmt.Errorf("some calls did not take the direct path: %v", paths)
	}

	var lost *symmem.RankLostError
	if !errors.As(err, &lost) {
		return nil, err
	}

	report := &lossReport{Lost: lost.Ranks, Text: err.Error(), After: "right sums"}
	if err := symmetricSum(ctx, rt, survivors); err != nil || slices.Contains(lost.Ranks, 0) {
		// Rank 0 serves the store, without which no group can be created.
		return report, err
	}

	return report, checkNewGroup(ctx, rt, survivors)
}

// untilLost runs rounds until one fails because the victim has died in the middle of it.
func untilLost(ctx context.Context, rt *symmem.Runtime, p *symmem.Pool) error {
	roundName := os.Getenv(roundVariable)
	var done atomic.Int64
	if isVictim() && !rounds[roundName].killsVictim {
		go dieInRound(&done)
	}

	for {
		if err := rounds[roundName].run(ctx, rt, p); err != nil {
			return err
		}

		done.Add(1)
	}
}

// dieInRound kills this process in the middle of a round, after roundsBefore complete rounds.
func dieInRound(done *atomic.Int64) {
	for done.Load() < roundsBefore {
		syscall.Syscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}

	die()
}

func TestErrorNamesKilledRank(t *testing.T) {
	var direct atomic.Bool
	ranks := min(lostRanks, availableRanks(t))
	runRanks(t, ranks, symmem.Options{}, func(r *rank) { direct.Store(!r.Device().Addressable) })
	victims := []int{ranks - 1, 0}
	if testing.Short() {
		victims = victims[:1]
	}

	for roundName, round := range rounds {
		if round.direct && !direct.Load() {
			continue
		}

		for _, victim := range victims {
			t.Run(fmt.Sprintf("rank %d in %s", victim, roundName), func(t *testing.T) {
				loseRank(t, roundName, ranks, victim)
			})
		}
	}

	if left := sharedFiles(t); left != "" {
		t.Errorf("the ranks left the files %s in shared memory, want none", left)
	}
}

// TestJoinNamesMissingRank checks that the timeout names only the missing rank, and not the ranks
// that wait for it. A rank that begins to wait just before the deadline names no rank.
func TestJoinNamesMissingRank(t *testing.T) {
	ranks := min(4, availableRanks(t))
	for missing := range ranks {
		wait := newSharedDeadline(func(w symmem.LateWarning) bool {
			return w.Group == "incomplete" && slices.Equal(w.Ranks, []int{missing})
		})
		var namingErrors atomic.Int32
		runRanks(t, ranks, wait.options(), func(r *rank) {
			if r.Rank() == missing {
				return
			}

			_, err := r.Join(wait.context(r), "incomplete", r.World().Ranks())
			late, ok := errors.AsType[*symmem.TimeoutError](err)
			if !ok || len(late.Missing) > 0 && !slices.Equal(late.Missing, []int{missing}) {
				r.failf("got %v, want a TimeoutError that names only rank %d", err, missing)
			} else if len(late.Missing) > 0 {
				namingErrors.Add(1)
			}
		})
		if namingErrors.Load() == 0 {
			t.Errorf("no rank named rank %d", missing)
		}
	}
}

// TestErrorNamesKilledRankOfOtherMachine simulates a machine for each rank. The ranks connect over
// TCP, and kernels reach peers through fabric handles.
func TestErrorNamesKilledRankOfOtherMachine(t *testing.T) {
	if err := checkFabric(); errors.Is(err, symmem.ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}

	ranks := min(lostRanks, availableRanks(t))
	for roundName, round := range rounds {
		if round.direct || roundName == "a value" {
			t.Run(roundName, func(t *testing.T) { loseRank(t, roundName, ranks, ranks-1, ownMachine) })
		}
	}
}

// checkFabric returns ErrUnsupported if ranks cannot reach memory of another machine. This is the
// case on the host and on GPUs without an IMEX channel; for the software GPU, the variable
// SOFTGPU_FABRIC decides.
func checkFabric() error {
	if os.Getenv(backendVariable) != "nccl" {
		return fmt.Errorf("the host backend shares memory on one machine only: %w", symmem.ErrUnsupported)
	}

	channels, err := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*")
	if err == nil && len(channels) == 0 && os.Getenv("SOFTGPU_FABRIC") != "1" {
		err = fmt.Errorf("no IMEX channel: %w", symmem.ErrUnsupported)
	}

	return err
}

func ownMachine(rank int) []string {
	return []string{fmt.Sprintf("NCCL_HOSTID=apart-%d", rank), "NCCL_NET=Socket"}
}

// loseRank starts a process with the given environment variables for each rank, and checks the
// reports of the surviving ranks.
func loseRank(
	t *testing.T, roundName string, ranks, victim int, variables ...func(rank int) []string,
) {
	t.Helper()
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range ranks {
		var env []string
		for _, variablesOf := range variables {
			env = append(env, variablesOf(number)...)
		}

		processes = append(processes, startRank(t, store, roundName, number, ranks, victim, env...))
	}

	_ = processes[victim].Wait()
	died := time.Now()
	for number, c := range processes {
		if number == victim {
			continue
		}

		err := c.Wait()
		report := c.Stdout.(*bytes.Buffer).String()
		if err != nil || !strings.Contains(report, fmt.Sprintf(`"lost":[%d]`, victim)) ||
			!strings.Contains(report, "right sums") ||
			rounds[roundName].mustUnmap && !strings.Contains(report, `"mapped":null`) {
			t.Errorf("rank %d: got error %v and report %s, want a report that names rank %d and, "+
				"if the round unmaps memory, no mapped files", number, err, report, victim)
		}
	}

	if took := time.Since(died); took > lostTimeout/2 {
		t.Errorf("the surviving ranks exited after %v, want at most %v", took, lostTimeout/2)
	}

	if left := leftovers(t, processes, store); left != "" {
		t.Errorf("the ranks left %s behind, want nothing", left)
	}
}

// startRank starts this program as a rank whose Stdout and Stderr share a buffer.
func startRank(
	t *testing.T, store, roundName string, number, ranks, victim int, env ...string,
) *exec.Cmd {
	t.Helper()
	c := rankCommand(t, store, roundName, number, ranks, victim, env...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}

	return c
}

func rankCommand(
	t *testing.T, store, roundName string, number, ranks, victim int, env ...string,
) *exec.Cmd {
	t.Helper()
	c := systest.Command(t, systest.Patience, os.Args[0])
	c.Env = append(append(os.Environ(), env...), storeVariable+"="+store, roundVariable+"="+roundName,
		rankVariable+"="+strconv.Itoa(number), sizeVariable+"="+strconv.Itoa(ranks),
		victimVariable+"="+strconv.Itoa(victim))
	out := &bytes.Buffer{}
	c.Stdout, c.Stderr = out, out
	return c
}

// leftovers lists the processes that still exist, and the socket of the store if it exists.
func leftovers(t *testing.T, processes []*exec.Cmd, store string) string {
	t.Helper()
	var left []string
	for _, c := range processes {
		if err := syscall.Kill(c.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
			left = append(left, fmt.Sprintf("process %d", c.Process.Pid))
		}
	}

	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}

	if name := strings.TrimPrefix(store, "unix:"); strings.Contains(string(sockets), name) {
		left = append(left, name)
	}

	return strings.Join(left, ", ")
}

// sharedFiles lists symmem's files in shared memory.
func sharedFiles(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}

	var names []string
	for _, e := range entries {
		if strings.Contains(e.Name(), "symmem") {
			names = append(names, e.Name())
		}
	}

	return strings.Join(names, " ")
}
