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

// processes holds the processes of a group by rank.
type processes []*process

// process is a rank in a separate process, which a test can kill or stop. The process runs the test
// binary, and prints events as lines of JSON, for example {"Name":"running"}. The last event,
// "outcome", describes the error of the rank.
type process struct {
	t       testing.TB
	rank    int
	command *exec.Cmd
	lines   *bufio.Scanner // reads the events
}

// startProcesses starts a group with one process per rank, and waits until all are running.
func startProcesses(t *testing.T, size int, task string, timeout time.Duration) processes {
	t.Helper()
	storeAddress := serveStore(t)
	var procs processes
	for rank := range size {
		procs = append(procs, startProcess(t, rankConfig{
			Task:    task,
			Store:   storeAddress,
			Rank:    rank,
			Size:    size,
			Timeout: timeout,
		}))
	}

	for _, p := range procs {
		p.awaitEvent("running")
	}

	return procs
}

// serveStore serves a store until the test ends.
func serveStore(t testing.TB) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "store")
	const noToken = ""
	server, err := rendezvous.Listen(address, noToken)
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// startProcess starts a process, which is killed after hangTimeout or when the test ends.
func startProcess(t testing.TB, c rankConfig) *process {
	t.Helper()
	text, err := json.Marshal(c)
	must(t, err)
	executable, err := os.Executable()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	command := exec.CommandContext(ctx, executable)
	command.Env = append(os.Environ(), configVariable+"="+string(text))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe() // the process exits if the test process dies
	must(t, err)
	stdout, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		cancel() // kills the process
		_ = stdin.Close()
		_ = command.Wait() // fails for a killed process
	})
	return &process{t: t, rank: c.Rank, command: command, lines: bufio.NewScanner(stdout)}
}

// awaitStop waits until SIGSTOP has stopped the process.
func (p *process) awaitStop() {
	p.t.Helper()
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.command.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}

		if !status.Stopped() {
			p.t.Fatalf("rank %d: status %#x, %v; want a stopped process", p.rank, status, err)
		}

		return
	}
}

func (p *process) awaitOutcome() event { return p.awaitEvent("outcome") }

// awaitEvent returns the next event with a name. It fails the test if the process ends first.
func (p *process) awaitEvent(name string) event {
	p.t.Helper()
	for p.lines.Scan() {
		var e event
		if err := json.Unmarshal(p.lines.Bytes(), &e); err != nil {
			p.t.Fatalf("rank %d wrote %q: %v", p.rank, p.lines.Text(), err)
		}

		if e.Name == name {
			return e
		}

		if e.Name == "outcome" {
			p.t.Fatalf("rank %d finished before event %q: %+v", p.rank, name, e)
		}
	}

	p.t.Fatalf("rank %d exited without event %q: %v", p.rank, name, p.lines.Err())
	return event{} // not reached
}

func (p *process) sendSignal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(fmt.Errorf("signalling rank %d: %w", p.rank, err))
	}
}
