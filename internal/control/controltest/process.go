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

type processes []*process

type process struct {
	t       testing.TB
	rank    int
	command *exec.Cmd
	lines   *bufio.Scanner
}

// startProcesses starts one process per rank. It waits until each has repeated the wait called
// waitName several times.
func startProcesses(t *testing.T, size int, waitName string, timeout time.Duration) processes {
	t.Helper()
	storeAddress := serveStore(t)
	var procs processes
	for rank := range size {
		procs = append(procs, startProcess(t, rank, program{
			WaitName: waitName, Store: storeAddress, Rank: rank, Size: size, Timeout: timeout,
		}))
	}
	for _, p := range procs {
		p.awaitEvent("running")
	}
	return procs
}

func serveStore(t testing.TB) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "store")
	server, err := rendezvous.Listen(address, "")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// startProcess runs a rank in a new process of the test binary, which is killed when the test ends.
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

// awaitStop waits until a signal has stopped the process.
func (p *process) awaitStop() {
	p.t.Helper()
	var status syscall.WaitStatus
	wait := func() error {
		_, err := syscall.Wait4(p.command.Process.Pid, &status, syscall.WUNTRACED, nil)
		return err
	}
	err := wait()
	for errors.Is(err, syscall.EINTR) {
		err = wait()
	}
	if !status.Stopped() {
		p.t.Fatalf("rank %d: status %#x, %v; want a stopped process", p.rank, status, err)
	}
}

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
	return output{}
}

func (p *process) sendSignal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(fmt.Errorf("signalling rank %d: %w", p.rank, err))
	}
}
