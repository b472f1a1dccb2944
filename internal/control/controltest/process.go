package controltest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"symmem/internal/rendezvous"
)

// processes are the ranks of a group, by rank.
type processes []*process

// process is a rank in a separate process, which a test can kill or stop. The process runs the test
// binary with a program in an environment variable. It prints events as lines of JSON, for example
// {"Event":"running"}. The last event, "outcome", describes the error of the rank.
type process struct {
	t       testing.TB
	rank    int
	command *exec.Cmd
	lines   *bufio.Scanner // reads the events
}

// startProcesses starts a group with one process per rank, and waits until all are running. Each
// process repeats the wait waitName, a key of waitFunctions, or runs a program such as idleProgram.
func startProcesses(t *testing.T, size int, waitName string, timeout time.Duration) processes {
	t.Helper()
	storeAddress := serveStore(t)
	var procs processes
	for rank := range size {
		procs = append(procs, startProcess(t, rank, program{
			WaitName: waitName,
			Store:    storeAddress,
			Rank:     rank,
			Size:     size,
			Timeout:  timeout,
		}))
	}

	for _, p := range procs {
		p.awaitEvent("running")
	}

	return procs
}

// serveStore serves the store through which ranks connect to each other, until the test ends.
func serveStore(t testing.TB) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "store")
	const noToken = ""
	server, err := rendezvous.Listen(address, noToken)
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// startProcess runs a program in a new process, which is killed when the test ends.
func startProcess(t testing.TB, rank int, prog program) *process {
	t.Helper()
	text, err := json.Marshal(prog)
	must(t, err)
	executable, err := os.Executable()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	command := exec.CommandContext(ctx, executable)
	command.Env = append(os.Environ(), programEnvVariable+"="+string(text))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe() // the process exits when this pipe is closed
	must(t, err)
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		cancel() // kills the process
		_ = stdin.Close()
		_ = command.Wait() // fails for a killed process
	})
	return &process{t: t, rank: rank, command: command, lines: bufio.NewScanner(stdout)}
}

// awaitStop waits until a signal has stopped the process.
func (p *process) awaitStop() {
	p.t.Helper()
	var status syscall.WaitStatus
	var err error
	for {
		_, err = syscall.Wait4(p.command.Process.Pid, &status, syscall.WUNTRACED, nil)
		wasInterrupted := errors.Is(err, syscall.EINTR)
		if !wasInterrupted {
			break
		}
	}

	if !status.Stopped() {
		p.t.Fatalf("rank %d: status %#x, %v; want a stopped process", p.rank, status, err)
	}
}

// awaitEvent returns the next event of the given name, and skips earlier events of the process.
func (p *process) awaitEvent(event string) output {
	p.t.Helper()
	for p.lines.Scan() {
		var o output
		if err := json.Unmarshal(p.lines.Bytes(), &o); err != nil {
			p.t.Fatalf("rank %d wrote %q: %v", p.rank, p.lines.Text(), err)
		}

		if o.Event == event {
			return o
		}

		if o.Event == "outcome" {
			p.t.Fatalf("rank %d finished before event %q: %+v", p.rank, event, o)
		}
	}

	p.t.Fatalf("rank %d exited without event %q: %v", p.rank, event, p.lines.Err())
	return output{} // not reached
}

func (p *process) sendSignal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(fmt.Errorf("signalling rank %d: %w", p.rank, err))
	}
}
