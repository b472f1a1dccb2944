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
	lines := strings.SplitAfter(text, "\n")
	slices.Sort(lines)
	return result, lines[1:] // without the empty string after the last line, which is sorted first
}

// TestRanksGetTorchrunVariables checks the variables that ranks get. Variables of the launcher
// must not replace them.
func TestRanksGetTorchrunVariables(t *testing.T) {
	spec := newSpec("environ", 2, nil)
	spec.MasterPort, spec.RunID = 12345, "job"
	spec.Env = append(spec.Env, "RANK=7", "TORCHELASTIC_USE_AGENT_STORE=True",
		"TORCHELASTIC_ERROR_FILE=/tmp/x")
	spec.Env = slices.DeleteFunc(spec.Env, func(entry string) bool {
		return strings.HasPrefix(entry, "OMP_NUM_THREADS=")
	})
	result, lines := runJob(t, spec)
	want := []string{}
	for rank := range 2 {
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
	if result.Code != 0 || result.FirstFailed != -1 || len(result.Exits) != 2 {
		t.Fatalf("unexpected result of Run: %+v", result)
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
		t.Fatalf("unexpected output %q or result %+v", lines, result)
	}
}

// TestLinesAreWholeAndPrefixed starts ranks that print the lines of linesOf to their standard
// output and the line of errorOf to their standard error.
func TestLinesAreWholeAndPrefixed(t *testing.T) {
	linesOf := func(rank int, prefix string) []string {
		return []string{
			fmt.Sprintf("%sone of %d\n", prefix, rank), prefix + "two\r\n", prefix + "\n",
			prefix + longLine + "\n", prefix + "no end\n",
		}
	}
	errorOf := func(rank int, prefix string) string {
		return fmt.Sprintf("%serror of %d\n", prefix, rank)
	}
	rows := map[string]struct {
		omitPrefix bool
		want       []string // in any order
	}{
		"prefixed": {false, slices.Concat(linesOf(0, "[0] "), linesOf(1, "[1] "),
			[]string{errorOf(0, "[0] "), errorOf(1, "[1] ")})},
		"plain": {true, slices.Concat(linesOf(0, ""), linesOf(1, ""),
			[]string{errorOf(0, ""), errorOf(1, "")})},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			spec := newSpec("lines", 2, nil)
			spec.OmitPrefix = r.omitPrefix
			spec.lineDelay = testTimeout // A rank may pause within its long line.
			_, got := runJob(t, spec)
			slices.Sort(r.want)
			if !slices.Equal(got, r.want) {
				t.Fatalf("got %d lines %.200q\nwant %d lines %.200q",
					len(got), got, len(r.want), r.want)
			}
		})
	}
}

func TestOnlyRankZeroReadsInput(t *testing.T) {
	spec := newSpec("cat", 2, nil)
	spec.Stdin = strings.NewReader("hello\n")
	result, lines := runJob(t, spec)
	if !slices.Equal(lines, []string{"[0] hello\n"}) || result.Code != 0 {
		t.Fatalf("unexpected output %q or result %+v", lines, result)
	}
}

func TestInvalidSpecStartsNoProcess(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
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
		{"too many ranks", Spec{Ranks: 5000, Command: []string{"true"}}, ErrRankCount},
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
				t.Fatalf("Run = %+v, %v; want %v", result, err, r.want)
			}
		})
	}
	spec := Spec{Ranks: 1, Command: []string{"true"}, MasterPort: 1 << 16}
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
		t.Fatalf("unexpected result of Run: %+v", result)
	}
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "symmem: ") })
	if !slices.Equal(lines, []string{"[0] got terminated\n"}) {
		t.Fatalf("got output %q, want only the line of rank 0 about SIGTERM", lines)
	}
}

// TestRanksCanReportKilledRank checks that a rank can report during the grace period that another
// rank was killed.
func TestRanksCanReportKilledRank(t *testing.T) {
	out := newTranscript()
	spec := newSpec("lose rank", 2, out)
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer feed.Close()
	spec.Stdin = stdin
	done := startRun(testContext(t), spec)
	text := out.waitFor(t, 2, "ready")
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
	if o.err != nil || o.FirstFailed != 1 || o.Code != killedCode || o.Exits[0].Code != 5 {
		t.Fatalf("unexpected result of Run: %+v", o)
	}
	if got := o.Exits[1].String(); !strings.Contains(got, "killed by signal 9 (killed)") {
		t.Fatalf("String() = %q; want signal 9", got)
	}
	out.waitFor(t, 1, "[0] rank 1 is lost: killed\n")
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
}
