package controltest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"symmem/internal/rendezvous"
)

type processes []*process

type process struct {
	t       testing.TB
	rank    int
	command *exec.Cmd
	lines   *bufio.Scanner
}

// startProcesses starts the ranks of a group and waits until each has completed roundsToRun rounds.
func startProcesses(t *testing.T, size int, waitName string, timeout time.Duration) processes {
	t.Helper()
	socket := openStore(t)
	var c processes
	for rank := range size {
		c = append(c, startProcess(t, rank, program{
			WaitName: waitName, Store: socket, Rank: rank, Size: size, Timeout: timeout,
		}))
	}
	for _, a := range c {
		a.await("running")
	}
	return c
}

func openStore(t testing.TB) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "store")
	server, err := rendezvous.Listen(address, "")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// startProcess runs a rank in a new process of the test binary. The process is killed when the
// test ends.
func startProcess(t testing.TB, rank int, s program) *process {
	t.Helper()
	text, err := json.Marshal(s)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), programVariable+"="+string(text))
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	must(t, err)
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	t.Cleanup(func() {
		cancel()
		_ = input.Close()
		_ = command.Wait()
	})
	return &process{t: t, rank: rank, command: command, lines: bufio.NewScanner(output)}
}

func (a *process) await(event string) output {
	a.t.Helper()
	for a.lines.Scan() {
		var n output
		if err := json.Unmarshal(a.lines.Bytes(), &n); err != nil {
			a.t.Fatalf("rank %d wrote %q: %v", a.rank, a.lines.Text(), err)
		}
		if n.Event == event {
			return n
		}
		if n.Event == "outcome" {
			a.t.Fatalf("rank %d finished before event %q: %+v", a.rank, event, n)
		}
	}
	a.t.Fatalf("rank %d exited without event %q: %v", a.rank, event, a.lines.Err())
	return output{}
}

func (a *process) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.command.Process.Signal(s); err != nil {
		a.t.Fatal(fmt.Errorf("signalling rank %d: %w", a.rank, err))
	}
}
