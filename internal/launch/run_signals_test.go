package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/sys/systest"
)

// TestSignalsReachAllRanks passes signals to Run, which must forward each of them to all ranks.
// The ranks print all signals, and exit at SIGTERM.
func TestSignalsReachAllRanks(t *testing.T) {
	out := newTranscript()
	spec := newSpec("print signals", 3, out)
	signals := make(chan os.Signal, 2) // buffered, because Run stops reading when the job has ended
	spec.Signals = signals
	done := startRun(testContext(t), spec)
	out.waitFor(t, 3, "ready")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT} {
		signals <- s
		out.waitFor(t, 3, "got "+s.String())
	}

	signals <- syscall.SIGTERM
	if o := <-done; o.err != nil || o.Code != 0 {
		t.Fatalf("unexpected result of Run: %+v", o)
	}

	out.waitFor(t, 3, "got terminated")
}

// TestRunHandlesProcessSignals sends signals to this process, which Run must forward to the ranks
// because Spec.Signals is nil.
func TestRunHandlesProcessSignals(t *testing.T) {
	out := newTranscript()
	done := startRun(testContext(t), newSpec("print signals", 2, out))
	out.waitFor(t, 2, "ready")
	kill(t, os.Getpid(), syscall.SIGHUP)
	out.waitFor(t, 2, "got hangup")
	kill(t, os.Getpid(), syscall.SIGTERM)
	if o := <-done; o.err != nil || o.Code != 0 {
		t.Fatalf("unexpected result of Run: %+v", o)
	}
}

// killedCode is the exit code of a rank that was killed.
const killedCode = 128 + int(syscall.SIGKILL)

func TestSecondInterruptKills(t *testing.T) {
	out := newTranscript()
	spec := newSpec("ignore signals", 2, out)
	signals := make(chan os.Signal, 2) // buffered, because Run stops reading when the job has ended
	spec.Signals = signals
	done := startRun(testContext(t), spec)
	out.waitFor(t, 2, "ready")
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	o := <-done
	if o.err != nil || o.Code != killedCode || o.Exits[1].Signal != syscall.SIGKILL {
		t.Fatalf("unexpected result of Run: %+v", o)
	}
}

func TestStubbornRanksAreKilledAfterSIGTERM(t *testing.T) {
	out := newTranscript()
	spec := newSpec("ignore signals", 2, out)
	signals := make(chan os.Signal)
	spec.Signals, spec.KillDelay = signals, 100*time.Millisecond
	done := startRun(testContext(t), spec)
	out.waitFor(t, 2, "ready")
	signals <- syscall.SIGTERM
	o := <-done
	if o.err != nil || o.Code != killedCode || o.Exits[1].Signal != syscall.SIGKILL {
		t.Fatalf("unexpected result of Run: %+v", o)
	}

	out.waitFor(t, 1, "sending SIGKILL to the remaining ranks")
}

// TestLauncherReportsDescriptorLimit checks the message that the launcher prints if it has too
// few descriptors to accept its ranks' connections or to start the ranks.
func TestLauncherReportsDescriptorLimit(t *testing.T) {
	for name, role := range map[string]string{
		"too few for connections": "launch with 48 descriptors",
		"too few for processes":   "launch with 16 descriptors",
	} {
		t.Run(name, func(t *testing.T) {
			out := newTranscript()
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			c := exec.CommandContext(ctx, "/proc/self/exe")
			c.Env = append(os.Environ(), roleVariable+"="+role)
			c.Stdout, c.Stderr = out, out
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}

			out.waitFor(t, 1, "raise the limit of open files (ulimit -n)")
			cancel()
			_ = c.Wait() // fails if the launcher was killed
		})
	}
}

// TestStubbornRanksAreKilledAfterFailure kills one of two ranks. The other rank ignores SIGTERM,
// so Run must kill it.
func TestStubbornRanksAreKilledAfterFailure(t *testing.T) {
	out := newTranscript()
	spec := newSpec("ignore signals", 2, out)
	spec.Grace, spec.TermWait = -1, -1 // Run waits for neither.
	done := startRun(testContext(t), spec)
	kill(t, processIDs(t, out.waitFor(t, 2, "ready"))[0], syscall.SIGKILL)
	if o := <-done; o.err != nil || o.Code != killedCode {
		t.Fatalf("unexpected result of Run: %+v", o)
	}
}

// TestStoppedRankIsNamedAndTerminated checks that a stopped rank gets SIGCONT after SIGTERM,
// because without SIGCONT it would not exit before SIGKILL is due.
func TestStoppedRankIsNamedAndTerminated(t *testing.T) {
	out := newTranscript()
	spec := newSpec("print signals", 2, out)
	spec.Grace = -1 // Run sends SIGTERM at once.
	done := startRun(testContext(t), spec)
	text := out.waitFor(t, 2, "ready")
	processes := processIDs(t, text)
	kill(t, processes[0], syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(processes[0], &status, syscall.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}

	kill(t, processes[1], syscall.SIGKILL)
	if o := <-done; o.err != nil || o.Code != killedCode {
		t.Fatalf("unexpected result of Run: %+v", o)
	}

	text, _ = out.read()
	want := fmt.Sprintf("process %d, stopped)", processes[0])
	if !strings.Contains(text, "symmem: sending SIGTERM to the remaining ranks (rank ") ||
		!strings.Contains(text, want) {
		t.Errorf("got output %q, want a SIGTERM message with %q", text, want)
	}

	out.waitFor(t, 1, "got terminated")
}

// TestCanceledContextKillsGrandchildren starts two ranks, each of which starts a child.
func TestCanceledContextKillsGrandchildren(t *testing.T) {
	out := newTranscript()
	ctx, cancel := context.WithCancelCause(testContext(t))
	done := startRun(ctx, newSpec("start child", 2, out))
	processes := processIDs(t, out.waitFor(t, 2, "ready"))
	if len(processes) != 4 {
		t.Fatalf("got processes %v, want two ranks and two children", processes)
	}

	cause := errors.New("canceled by the test")
	cancel(cause)
	o := <-done
	if !errors.Is(o.err, cause) || o.Code != killedCode || len(o.Exits) != 2 {
		t.Fatalf("unexpected result of Run: %+v", o)
	}

	for _, pid := range processes {
		waitForProcessEnd(t, pid)
	}
}

func TestRankExitKillsItsChildren(t *testing.T) {
	out := newTranscript()
	result, err := Run(testContext(t), newSpec("leave child", 2, out))
	if err != nil || result.Code != 0 {
		t.Fatalf("Run = %+v, %v; want code 0", result, err)
	}

	text, _ := out.read()
	processes := processIDs(t, text)
	if len(processes) != 4 {
		t.Fatalf("got processes %v in %q, want 4", processes, text)
	}

	for _, pid := range processes {
		waitForProcessEnd(t, pid)
	}
}

func TestRanksDieWithLauncher(t *testing.T) {
	out := newTranscript()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := systest.Command(t, systest.Patience, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=launch")
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	w.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(out, r)
	}()
	processes := processIDs(t, out.waitFor(t, 2, "ready"))
	kill(t, cmd.Process.Pid, syscall.SIGKILL)
	if err := cmd.Wait(); err == nil {
		t.Fatal("the launcher exited with code 0 after SIGKILL")
	}

	for _, pid := range processes {
		waitForProcessEnd(t, pid)
	}

	<-copied
}

func TestRunReturnsOutputError(t *testing.T) {
	spec := newSpec("lines", 2, nil)
	errFull := errors.New("disk full")
	spec.Stdout = writerFunc(func([]byte) (int, error) { return 0, errFull })
	spec.Stderr = io.Discard
	result, err := Run(testContext(t), spec)
	if !errors.Is(err, errFull) || !strings.Contains(err.Error(), "output of the ranks") {
		t.Fatal(err)
	}

	if result.Code != 0 || len(result.Exits) != 2 {
		t.Fatalf("Run = %+v; want code 0 and two exits, in spite of the output error", result)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestClosedOutputReaderTerminatesRanks closes the reader of the output. The ranks must exit,
// because nothing reads their output. SIGPIPE must not kill the launcher, because the ranks'
// children would then keep running.
func TestClosedOutputReaderTerminatesRanks(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}

	out := newTranscript() // the launcher's messages
	cmd := systest.Command(t, systest.Patience, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=launch printers")
	cmd.Stdout, cmd.Stderr = w, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	w.Close()
	ready := bufio.NewScanner(r)
	var processes []int
	for len(processes) < 4 && ready.Scan() {
		processes = append(processes, processIDs(t, ready.Text())...)
	}

	r.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the launcher returned %v and wrote %q", err, out.text.String())
	}

	if len(processes) != 4 {
		t.Fatalf("got processes %v, want 4", processes)
	}

	for _, pid := range processes {
		waitForProcessEnd(t, pid)
	}

	out.waitFor(t, 1, "the output of the launcher was closed: sending SIGTERM")
	out.waitFor(t, 1, "result signal: broken pipe")
}
