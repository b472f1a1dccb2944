package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// outcome holds the results of Run.
type outcome struct {
	Result
	err error
}

// startRun calls Run in a goroutine, and sends its outcome to the returned channel.
func startRun(ctx context.Context, spec Spec) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		result, err := Run(ctx, spec)
		done <- outcome{result, err}
	}()
	return done
}

// testContext returns a context that ends with the test, or after testTimeout if the test hangs.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// runJob runs a job and returns its result and the sorted lines of its output. The test fails
// if Run returns an error.
func runJob(t *testing.T, spec Spec) (Result, []string) {
	t.Helper()
	out := newTranscript()
	spec.Stdout, spec.Stderr = out, out
	result, err := Run(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}

	text, _ := out.read()
	lines := slices.Collect(strings.Lines(text))
	slices.Sort(lines)
	return result, lines
}

// TestRanksGetTorchrunVariables checks the variables that ranks get. The launcher's environment
// has other values for some of them, which ranks must not inherit.
func TestRanksGetTorchrunVariables(t *testing.T) {
	const ranks = 2
	spec := newSpec("environ", ranks, nil) // Each rank prints its variables.
	spec.MasterPort, spec.RunID = 12345, "job"
	// Ranks must not get these values.
	spec.Env = append(spec.Env, "RANK=7", "TORCHELASTIC_USE_AGENT_STORE=True",
		"TORCHELASTIC_ERROR_FILE=/tmp/x")
	// Without a value from the user, ranks get OMP_NUM_THREADS=1.
	spec.Env = slices.DeleteFunc(spec.Env, func(entry string) bool {
		return strings.HasPrefix(entry, "OMP_NUM_THREADS=")
	})
	result, lines := runJob(t, spec)
	var want []string
	for rank := range ranks {
		for _, v := range []string{
			fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("LOCAL_RANK=%d", rank), "WORLD_SIZE=2",
			"LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=12345",
			"TORCHELASTIC_RUN_ID=job", "TORCHELASTIC_RESTART_COUNT=0", "OMP_NUM_THREADS=1",
			"TORCHELASTIC_USE_AGENT_STORE=False", "TORCHELASTIC_ERROR_FILE=",
		} {
			want = append(want, fmt.Sprintf("[%d] %s\n", rank, v))
		}
	}

	slices.Sort(want)
	if !slices.Equal(lines, want) {
		t.Fatalf("got  %q\nwant %q", lines, want)
	}

	const noRank = -1
	if result.Code != 0 || result.FirstFailed != noRank || len(result.Exits) != ranks {
		t.Fatalf("Run = %+v, want code 0, no failed rank and the exits of %d ranks", result, ranks)
	}

	if port, err := choosePort(0); port == 0 || err != nil {
		t.Fatalf("choosePort(0) = %d, %v; want a free port", port, err)
	}
}

// TestUserThreadCountIsKept sets the variable OMP_NUM_THREADS, which ranks otherwise get with the
// value 1.
func TestUserThreadCountIsKept(t *testing.T) {
	spec := newSpec("environ", 2, nil)
	spec.Env = append(spec.Env, "OMP_NUM_THREADS=5")
	_, lines := runJob(t, spec)
	// Rank 1 stands for all ranks.
	if !slices.Contains(lines, "[1] OMP_NUM_THREADS=5\n") {
		t.Fatalf("got output %q, want OMP_NUM_THREADS=5", lines)
	}
}

// TestRanksShareLauncherStore starts ranks that connect to the launcher's store and print their
// rank, the number of ranks, the source of the rank and the kind of the route.
func TestRanksShareLauncherStore(t *testing.T) {
	result, lines := runJob(t, newSpec("connect", 3, nil))
	want := []string{
		"[0] 0 3 symmem launch served by the launcher\n",
		"[1] 1 3 symmem launch served by the launcher\n",
		"[2] 2 3 symmem launch served by the launcher\n",
	}
	if !slices.Equal(lines, want) || result.Code != 0 {
		t.Fatalf("got output %q and result %+v, want output %q and code 0", lines, result, want)
	}
}

// TestLinesAreWholeAndPrefixed starts two ranks that write at the same time. Lines of different
// ranks must not be mixed, and each must have the prefix of its rank unless it is omitted.
func TestLinesAreWholeAndPrefixed(t *testing.T) {
	// linesOf returns the lines that a rank prints to its standard output.
	linesOf := func(rank int, prefix string) []string {
		return []string{
			fmt.Sprintf("%sone of %d\n", prefix, rank), prefix + "two\r\n", prefix + "\n",
			prefix + longLine + "\n", prefix + "no end\n",
		}
	}
	// errorOf returns the line that a rank prints to its standard error.
	errorOf := func(rank int, prefix string) string {
		return fmt.Sprintf("%serror of %d\n", prefix, rank)
	}
	rows := map[string]struct {
		omitPrefix bool
		want       []string // in any order
	}{
		"prefixed": {
			omitPrefix: false,
			want: slices.Concat(linesOf(0, "[0] "), linesOf(1, "[1] "),
				[]string{errorOf(0, "[0] "), errorOf(1, "[1] ")}),
		},
		"plain": {
			omitPrefix: true,
			want: slices.Concat(linesOf(0, ""), linesOf(1, ""),
				[]string{errorOf(0, ""), errorOf(1, "")}),
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			spec := newSpec("lines", 2, nil)
			spec.OmitPrefix = r.omitPrefix
			// A rank may pause within its long line. Run must not write the first part meanwhile.
			spec.lineDelay = testTimeout
			_, got := runJob(t, spec)
			slices.Sort(r.want)
			if !slices.Equal(got, r.want) {
				t.Fatalf("got %d lines %.200q\nwant %d lines %.200q",
					len(got), got, len(r.want), r.want)
			}
		})
	}
}

// TestOnlyRankZeroReadsInput starts ranks that copy their standard input to their output. Rank 1
// must read an empty input.
func TestOnlyRankZeroReadsInput(t *testing.T) {
	spec := newSpec("cat", 2, nil)
	spec.Stdin = strings.NewReader("hello\n")
	result, lines := runJob(t, spec)
	want := []string{"[0] hello\n"}
	if !slices.Equal(lines, want) || result.Code != 0 {
		t.Fatalf("got output %q and result %+v, want output %q and code 0", lines, result, want)
	}
}

// TestInvalidSpecStartsNoProcess checks the error for each invalid field of a Spec. The result must
// contain no exits, because no rank was started.
func TestInvalidSpecStartsNoProcess(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script") // cannot be started without its interpreter
	if err := os.WriteFile(script, []byte("#!/no/such\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	rows := []struct {
		name string
		spec Spec
		want error
	}{
		{"no ranks", Spec{Command: []string{"true"}}, ErrRankCount},
		{"negative number of ranks", Spec{Ranks: -1, Command: []string{"true"}}, ErrRankCount},
		{"too many ranks", Spec{Ranks: maxRanks + 1, Command: []string{"true"}}, ErrRankCount},
		{"no command", Spec{Ranks: 1}, ErrNoCommand},
		{"empty command", Spec{Ranks: 1, Command: []string{""}}, ErrNoCommand},
		{
			"missing command",
			Spec{Ranks: 1, Command: []string{"no-such-symmem"}},
			exec.ErrNotFound,
		},
		{
			"command that cannot be started",
			Spec{Ranks: 2, Command: []string{script}},
			os.ErrNotExist,
		},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			result, err := Run(testContext(t), r.spec)
			if !errors.Is(err, r.want) || len(result.Exits) != 0 {
				t.Fatalf("Run = %+v, %v; want no exits and %v", result, err, r.want)
			}
		})
	}

	const tooLargePort = 1 << 16
	spec := Spec{Ranks: 1, Command: []string{"true"}, MasterPort: tooLargePort}
	if _, err := Run(testContext(t), spec); err == nil {
		t.Fatalf("Run(%+v) = nil error, want an error about the port", spec)
	}
}

// TestFailureTerminatesOtherRanks lets rank 1 fail with code 7. Rank 0 must get SIGTERM, at which
// it exits with code 3.
func TestFailureTerminatesOtherRanks(t *testing.T) {
	spec := newSpec("fail on rank 1", 2, nil)
	spec.Grace = -1 // SIGTERM follows at once.
	result, lines := runJob(t, spec)
	if result.Code != 7 || result.FirstFailed != 1 || result.Exits[0].Code != 3 {
		t.Fatalf("Run = %+v, want code 7 of rank 1, and code 3 of rank 0", result)
	}

	// Ignore the launcher's messages.
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "symmem: ") })
	if !slices.Equal(lines, []string{"[0] got terminated\n"}) {
		t.Fatalf("got output %q, want only the line of rank 0 about SIGTERM", lines)
	}
}

// TestRanksCanReportKilledRank kills rank 1. During the grace period (the time before the launcher
// terminates the other ranks), rank 0 must still be able to report the loss. It then exits with
// code 5.
func TestRanksCanReportKilledRank(t *testing.T) {
	out := newTranscript()
	spec := newSpec("lose rank", 2, out)
	stdin, feed, err := os.Pipe() // feed reaches the standard input of rank 0
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer feed.Close()
	spec.Stdin = stdin
	done := startRun(testContext(t), spec)
	text := out.waitFor(t, 2, "ready") // Each rank prints "ready" and its process ID.
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "[1]") {
			lost := processIDs(t, line)[0]
			kill(t, lost, syscall.SIGKILL)
			waitForProcessEnd(t, lost)
		}
	}

	// Rank 0 detects the loss only now, and must still be running to report it.
	if _, err := feed.WriteString("killed\n"); err != nil {
		t.Fatal(err)
	}

	o := <-done
	if o.err != nil || o.FirstFailed != 1 || o.Code != killedCode {
		t.Fatalf("Run = %+v, want the first failure on rank 1 and code %d", o, killedCode)
	}

	if o.Exits[0].Code != 5 {
		t.Fatalf("rank 0 exited with code %d, want 5 after its report", o.Exits[0].Code)
	}

	if got := o.Exits[1].String(); !strings.Contains(got, "killed by signal 9 (killed)") {
		t.Fatalf("String() = %q; want \"killed by signal 9 (killed)\"", got)
	}

	out.waitFor(t, 1, "[0] rank 1 is lost: killed\n")
}

// kill sends a signal to a process.
func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}
