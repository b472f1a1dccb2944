package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/rendezvous"
)

// These tests start each rank as a process, and kill or stop one of them, the victim. A process
// runs a program, such as a loop of collectives, and prints the events "open", "running" and
// "outcome" as lines of JSON.

// processTimeout is longer than any wait that should succeed.
const processTimeout = 60 * time.Second

type processes struct {
	t   *testing.T
	all []*process // by rank
}

type process struct {
	t       *testing.T
	rank    int
	command *exec.Cmd
	input   io.Closer      // standard input; closing it ends the process
	lines   *bufio.Scanner // standard output; one event per line
	address string         // Unix socket from which peers fetch shared memory
}

// startProcesses starts the ranks and waits until all run the program. timeout limits the waits of
// a rank for its peers.
func startProcesses(t *testing.T, size int, program string, timeout time.Duration) *processes {
	t.Helper()
	socket := "unix:" + filepath.Join(t.TempDir(), "store")
	server, err := rendezvous.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = server.Close() })
	ps := &processes{t: t}
	for rank := range size {
		p := startProcess(t, rank, []string{
			programVariable + "=" + program,
			storeVariable + "=" + socket,
			fmt.Sprintf("%s=%d %d", rankVariable, rank, size),
			timeoutVariable + "=" + timeout.String(),
		})
		ps.all = append(ps.all, p)
	}

	for _, p := range ps.all {
		p.address = p.waitFor("open").Address
	}

	for _, p := range ps.all {
		p.waitFor("running")
	}

	return ps
}

// startProcess runs this test binary with additional environment variables, which make it a rank.
func startProcess(t *testing.T, rank int, environment []string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), processTimeout)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), environment...)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}

	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	p := &process{t: t, rank: rank, command: command, input: input, lines: bufio.NewScanner(output)}
	t.Cleanup(func() {
		cancel()
		_ = input.Close()
		_ = command.Wait()
	})
	return p
}

// waitFor returns the output of the next event of the given name.
func (p *process) waitFor(event string) output {
	p.t.Helper()
	for p.lines.Scan() {
		var o output
		if err := json.Unmarshal(p.lines.Bytes(), &o); err != nil {
			p.t.Fatalf("rank %d printed %q, want an output in JSON: %v", p.rank, p.lines.Text(), err)
		}

		if o.Event == event {
			return o
		}

		if o.Event == "outcome" {
			p.t.Fatalf("rank %d ended before event %q: %+v", p.rank, event, o)
		}
	}

	p.t.Fatalf("rank %d exited without event %q: %v", p.rank, event, p.lines.Err())
	return output{}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// checkErrorsNameVictim checks that at least one survivor got an error of the given kind that names
// the victim. All survivors must then have taken part in an exchange, which still works on the
// fault lane.
func (ps *processes) checkErrorsNameVictim(kind string, victim int) {
	ps.t.Helper()
	wantPresent := make([]bool, len(ps.all))
	for rank := range wantPresent {
		wantPresent[rank] = rank != victim
	}

	namingErrors := 0
	for _, p := range ps.all {
		if p.rank == victim {
			continue
		}

		outcome := p.waitFor("outcome")
		namesVictim := outcome.Kind == kind && slices.Equal(outcome.Ranks, []int{victim})
		if namesVictim {
			namingErrors++
		} else if outcome.Kind != "fault" { // another survivor had failed first
			ps.t.Errorf("rank %d got a %q error that names ranks %v (%s), want a %q error for rank %d",
				p.rank, outcome.Kind, outcome.Ranks, outcome.Text, kind, victim)
		}

		if !slices.Equal(outcome.Present, wantPresent) {
			ps.t.Errorf("rank %d: ranks present on the fault lane = %v, want %v", p.rank,
				outcome.Present, wantPresent)
		}
	}

	if namingErrors == 0 {
		ps.t.Errorf("no rank returned a %q error naming rank %d", kind, victim)
	}
}

// checkNoLeaks waits for all ranks, and checks that they left no process, socket or shared memory.
func (ps *processes) checkNoLeaks() {
	ps.t.Helper()
	for _, p := range ps.all {
		_ = p.command.Wait() // an error if the rank was killed
		const existenceCheck = syscall.Signal(0)
		if err := p.command.Process.Signal(existenceCheck); err == nil {
			ps.t.Errorf("rank %d is still running", p.rank)
		}
	}

	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		ps.t.Fatal(err)
	}

	for _, p := range ps.all {
		if strings.Contains(string(sockets), p.address) {
			ps.t.Errorf("rank %d left its socket %s", p.rank, p.address)
		}
	}

	names, err := filepath.Glob("/dev/shm/*symmem*")
	if err != nil || len(names) > 0 {
		ps.t.Errorf("leaked shared memory: got %v, error %v; want none", names, err)
	}
}

func TestErrorNamesKilledRank(t *testing.T) {
	const ranks, victim = 3, 1
	for program := range programs {
		t.Run(program, func(t *testing.T) {
			ps := startProcesses(t, ranks, program, processTimeout)
			ps.all[victim].signal(syscall.SIGKILL)
			ps.checkErrorsNameVictim("lost", victim)
			ps.checkNoLeaks()
		})
	}
}

// A rank that resumes after the timeout of its peers gets an error, too.
func TestErrorNamesStoppedRank(t *testing.T) {
	const ranks, victim = 3, 2
	const timeout = 1500 * time.Millisecond // short, because the test waits for it
	ps := startProcesses(t, ranks, "collectives", timeout)
	stopped := ps.all[victim]
	stopped.signal(syscall.SIGSTOP)
	ps.checkErrorsNameVictim("late", victim)
	stopped.signal(syscall.SIGCONT)
	outcome := stopped.waitFor("outcome")
	failedOutsideCall := outcome.Kind == "close" || outcome.Kind == "start"
	if failedOutsideCall {
		t.Errorf("the stopped rank got a %q error (%s), want an error of its call", outcome.Kind,
			outcome.Text)
	}

	ps.checkNoLeaks()
}
