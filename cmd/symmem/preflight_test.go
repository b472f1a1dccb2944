package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/preflight"
	"symmem/internal/sys/systest"
)

// absenceTimeout is how long ranks wait for a rank that never arrives. The other ranks must arrive
// within that time even on a busy machine. The tests that wait for it run in parallel.
const absenceTimeout = "--timeout=20s"

type preflightRun struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func startPreflight(t *testing.T, env []string, args ...string) *preflightRun {
	t.Helper()
	return startPreflightOf(t, symmemBinary(t), env, args...)
}

func startPreflightOf(t *testing.T, binary string, env []string, args ...string) *preflightRun {
	t.Helper()
	r := &preflightRun{}
	args = append([]string{"preflight", "--backend=host", "--json"}, args...)
	r.cmd = systest.Command(t, 2*systest.Patience, binary, args...)
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}

	return r
}

func (r *preflightRun) wait(t *testing.T) (code int, report preflight.Report) {
	t.Helper()
	_ = r.cmd.Wait() // the callers check the exit code
	if err := json.Unmarshal(r.stdout.Bytes(), &report); err != nil {
		t.Fatalf("the report is not valid JSON: %v\n%s%s", err, &r.stdout, &r.stderr)
	}

	return r.cmd.ProcessState.ExitCode(), report
}

// findRank waits until the given rank has started, and returns its process.
func (r *preflightRun) findRank(t *testing.T, rank int) *os.Process {
	t.Helper()
	want := fmt.Sprintf("\x00RANK=%d\x00", rank)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		entries, _ := filepath.Glob("/proc/[0-9]*")
		for _, entry := range entries {
			pid, _ := strconv.Atoi(filepath.Base(entry))
			environ, _ := os.ReadFile(filepath.Join(entry, "environ"))
			if parentOf(pid) == r.cmd.Process.Pid && strings.Contains("\x00"+string(environ), want) {
				process, err := os.FindProcess(pid)
				if err != nil {
					t.Fatal(err)
				}

				return process
			}
		}
	}

	t.Fatalf("rank %d did not start within a minute", rank)
	return nil
}

// checkRankAtFault checks that the report contains a single fault, which names the given rank.
func (r *preflightRun) checkRankAtFault(t *testing.T, rank int) {
	t.Helper()
	code, report := r.wait(t)
	if code != 4 || report.IsReady || len(report.Faults) != 1 ||
		report.Faults[0].Kind != preflight.KindRank ||
		!slices.Equal(report.Faults[0].Ranks, []int{rank}) {
		t.Errorf("exit code %d, report %s; want 4 and rank %d at fault\n%s", code, &r.stdout, rank,
			&r.stderr)
	}
}

func TestPreflight(t *testing.T) {
	metrics := filepath.Join(t.TempDir(), "symmem.prom")
	r := startPreflight(t, nil, "--ranks=3", "--tolerance=0", "--prometheus="+metrics)
	code, report := r.wait(t)
	if code != 0 || !report.IsReady || len(report.Links) != 3 || len(report.Calls) != 4 {
		t.Errorf("exit code %d, report %s; want 3 links and 4 calls\n%s", code, &r.stdout, &r.stderr)
	}

	if b, err := os.ReadFile(metrics); err != nil || !strings.Contains(string(b), "preflight_ok 1") {
		t.Errorf("metrics = %q, %v; want preflight_ok 1", b, err)
	}

	r = startPreflight(t, nil, "--ranks=2", "--tolerance=0", "--min-link=1e6")
	if code, report := r.wait(t); code != 5 || report.Faults[0].Kind != preflight.KindLink {
		t.Errorf("exit code %d, report %s; want 5 and a link at fault\n%s", code, &r.stdout, &r.stderr)
	}
}

// TestPreflightThatCannotWriteMetrics checks that the report is printed even if the metrics cannot
// be written, and that the exit code is then 2.
func TestPreflightThatCannotWriteMetrics(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing", "a.prom")
	r := startPreflight(t, nil, "--ranks=2", "--tolerance=0", "--prometheus="+missing)
	if code, report := r.wait(t); code != exitIncomplete || !report.IsReady ||
		!strings.Contains(r.stderr.String(), "writing metrics") {
		t.Errorf("exit code %d, report %s; want 2, a report and a message\n%s", code, &r.stdout,
			&r.stderr)
	}
}

func TestInterruptedPreflightReports(t *testing.T) {
	r := startPreflight(t, nil, "--ranks=2", "--tolerance=0")
	if err := r.findRank(t, 1).Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	if err := r.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}

	if code, report := r.wait(t); code != 128+int(syscall.SIGINT) || len(report.Faults) != 1 ||
		report.Faults[0].Kind != preflight.KindJob {
		t.Errorf("exit code %d, report %s; want 130 and a fault about the signal\n%s",
			code, &r.stdout, &r.stderr)
	}
}

func TestPreflightNamesKilledRank(t *testing.T) {
	r := startPreflight(t, nil, "--ranks=3", "--tolerance=0")
	if err := r.findRank(t, 1).Kill(); err != nil {
		t.Fatal(err)
	}

	r.checkRankAtFault(t, 1)
}

func TestPreflightNamesStoppedRank(t *testing.T) {
	t.Parallel()
	r := startPreflight(t, nil, "--ranks=3", "--tolerance=0", absenceTimeout)
	stopped := r.findRank(t, 2)
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	r.checkRankAtFault(t, 2)
}

// TestPreflightNamesRankStoppedAfterOpening stops a rank when each rank has mapped the memory of
// all ranks. Earlier, another rank might need it for that, and be late as well. The wait for the
// stopped rank must end after --timeout, long before --deadline.
func TestPreflightNamesRankStoppedAfterOpening(t *testing.T) {
	t.Parallel()
	r := startPreflight(t, nil, "--ranks=3", "--tolerance=0", absenceTimeout, "--deadline=1h")
	for rank := range 3 {
		awaitSegments(r.findRank(t, rank).Pid)
	}

	stopped := r.findRank(t, 2)
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	r.checkRankAtFault(t, 2)
}

// awaitSegments waits until a process has mapped a segment of each of three ranks, or has exited.
func awaitSegments(pid int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		inodes := map[string]bool{}
		for line := range strings.Lines(string(maps)) {
			if fields := strings.Fields(line); strings.Contains(line, "symmem-segment") {
				inodes[fields[4]] = true
			}
		}

		if err != nil || len(inodes) >= 3 {
			return
		}
	}
}

// launchPreflights starts the given ranks of a world of three, as a launcher does. The result has
// nil for the other ranks.
func launchPreflights(t *testing.T, ranks []int, args ...string) []*preflightRun {
	t.Helper()
	return launchPreflightsOf(t, symmemBinary(t), ranks, args...)
}

func launchPreflightsOf(
	t *testing.T, binary string, ranks []int, args ...string,
) []*preflightRun {
	t.Helper()
	port := heldPort(t)
	runs := make([]*preflightRun, 3)
	for _, rank := range ranks {
		runs[rank] = startPreflightOf(t, binary, []string{
			fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank), "WORLD_SIZE=3",
			"LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port),
		}, args...)
	}

	return runs
}

// heldPort returns a MASTER_PORT for the ranks of one machine. A listener keeps the port from other
// jobs during the test. Rank 0 does not listen there: it serves the store on a Unix socket that is
// named after the port.
func heldPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// checkNoReport checks that a rank prints its error but no report.
func (r *preflightRun) checkNoReport(t *testing.T) {
	t.Helper()
	_ = r.cmd.Wait() // the exit code is checked below
	if code := r.cmd.ProcessState.ExitCode(); code != 4 || r.stdout.Len() > 0 || r.stderr.Len() == 0 {
		t.Errorf("exit code %d, report %q, error %q; want 4, no report and an error", code, &r.stdout,
			&r.stderr)
	}
}

func TestPreflightNamesMissingRank(t *testing.T) {
	t.Parallel()
	runs := launchPreflights(t, []int{0, 1}, absenceTimeout, "--tolerance=0")
	runs[0].checkRankAtFault(t, 2)
	runs[1].checkNoReport(t)
	if !strings.Contains(runs[1].stderr.String(), "did not arrive") {
		t.Errorf("rank 1 printed %q; want the reason", &runs[1].stderr)
	}
}

// TestPreflightWithoutRankZero checks that the lowest remaining rank reports if rank 0 does not
// start.
func TestPreflightWithoutRankZero(t *testing.T) {
	t.Parallel()
	runs := launchPreflights(t, []int{1, 2}, absenceTimeout, "--tolerance=0")
	runs[1].checkRankAtFault(t, 0)
	runs[2].checkNoReport(t)
}

// TestPreflightAfterKillOfRankZero kills rank 0, which serves the store, once it has started.
func TestPreflightAfterKillOfRankZero(t *testing.T) {
	t.Parallel()
	runs := launchPreflights(t, []int{0, 1, 2}, absenceTimeout, "--tolerance=0")
	if err := runs[0].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = runs[0].cmd.Wait() // killed
	runs[1].checkRankAtFault(t, 0)
	runs[2].checkNoReport(t)
}

// TestPreflightOfStoppedRankDoesNotReport stops rank 1 when each rank has mapped the memory of
// all ranks, until the others have given up. It was late itself, so it must blame no other rank and
// print no report.
func TestPreflightOfStoppedRankDoesNotReport(t *testing.T) {
	t.Parallel()
	runs := launchPreflights(t, []int{0, 1, 2}, absenceTimeout, "--tolerance=0")
	stopped := runs[1].cmd.Process
	for _, r := range runs {
		awaitSegments(r.cmd.Process.Pid)
	}

	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	runs[0].checkRankAtFault(t, 1)
	runs[2].checkNoReport(t)
	if err := stopped.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}

	runs[1].checkNoReport(t)
	if !strings.Contains(runs[1].stderr.String(), "this process did not run for ") {
		t.Errorf("rank 1 printed %q; want that it was stopped", &runs[1].stderr)
	}
}

func TestStalledRankBlamesNoOtherRank(t *testing.T) {
	begin := time.Now()
	w := &stallWatch{lastTick: begin}
	w.tick(begin.Add(4 * time.Second))
	w.tick(begin.Add(4*time.Second + stallInterval))
	err := &symmem.TimeoutError{InCall: "AllReduce 1", Waited: time.Second, Missing: []int{0, 2}}
	blamedRanks := map[time.Duration][]int{8 * time.Second: nil, 9 * time.Second: {0, 2}}
	for timeout, blamed := range blamedRanks {
		r := &preflightRank{flags: &preflightFlags{timeout: timeout}}
		r.world.Rank = 1
		r.setError(err, w.longestStall(begin.Add(5*time.Second)))
		if !slices.Equal(r.result.BlamedRanks, blamed) || r.isReporter() != (blamed != nil) ||
			strings.Contains(r.result.Error, "did not run for 4s") != (blamed == nil) {
			t.Errorf("timeout %v: got %+v, reporter: %v; want blamed ranks %v", timeout, r.result,
				r.isReporter(), blamed)
		}
	}
}

// TestPreflightNamesSlowRank slows down the two links of rank 2.
func TestPreflightNamesSlowRank(t *testing.T) {
	slowRank := reflect.TypeFor[preflight.Report]().PkgPath() + ".slowRank=2"
	binary := filepath.Join(t.TempDir(), "symmem")
	args := []string{"build", "-ldflags=-X=" + slowRank, "-o", binary, "."}
	build := systest.Command(t, systest.Patience, "go", args...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compiling the command: %v\n%s", err, out)
	}

	runs := launchPreflightsOf(t, binary, []int{0, 1, 2}, "--timeout=1m", "--tolerance=0.95")
	runs[0].checkRankAtFault(t, 2)
	for _, r := range runs[1:] {
		if _ = r.cmd.Wait(); r.stdout.Len() > 0 {
			t.Errorf("a rank other than 0 printed the report %s, want none", &r.stdout)
		}
	}
}

// TestPreflightExitsAtDeadline stops all ranks, so that only the deadline can end the preflight.
func TestPreflightExitsAtDeadline(t *testing.T) {
	t.Parallel()
	r := startPreflight(t, nil, "--ranks=2", "--tolerance=0", "--timeout=5s", "--deadline=10s")
	for rank := range 2 {
		if err := r.findRank(t, rank).Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}

	if code, report := r.wait(t); code != 4 || len(report.Faults) != 2 {
		t.Errorf("exit code %d, report %s; want 4 and both ranks\n%s", code, &r.stdout, &r.stderr)
	}
}
