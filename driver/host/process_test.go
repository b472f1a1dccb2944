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

// Tests in this file start each rank as a process, which runs a program: for example, collectives
// in a loop. They then kill or stop a rank, the victim. Each other rank must end with an error, and
// at least one error must name the victim. The processes write outputs in JSON, one a line: first
// "open" and "running", and at last "outcome" with the error.

// processTimeout is longer than any wait that must succeed.
const processTimeout = 60 * time.Second

// processes holds the processes of all ranks.
type processes struct {
	t   *testing.T
	all []*process // by rank
}

// process is a rank that runs in another process.
type process struct {
	t       *testing.T
	rank    int
	command *exec.Cmd
	input   io.Closer      // standard input; the process exits when it is closed
	lines   *bufio.Scanner // standard output, one output per line
	address string         // of the rank's hand-off socket
}

// startProcesses starts a process for each rank, and waits until all are running the program with
// the given name. timeout limits their waits for each other.
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
		p := start(t, rank, []string{
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

// start starts this test binary as a rank, with additional environment variables. The rank is
// killed after processTimeout, or when the test ends.
func start(t *testing.T, rank int, environment []string) *process {
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

// waitFor reads the rank's outputs up to the first one with the given event, and returns that
// output. It fails the test if the rank ends without it.
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

// checkErrorsNameVictim checks the outcomes of all ranks except the victim. At least one must be an
// error of the given kind, such as "lost", that names the victim. The others may be a "fault"
// instead, an error because another rank has failed. At the end, the ranks exchange reports on the
// fault lane. All ranks except the victim must have taken part.
func (ps *processes) checkErrorsNameVictim(kind string, victim int) {
	ps.t.Helper()
	namingErrors := 0 // number of errors that name the victim
	wantPresent := make([]bool, len(ps.all))
	for rank := range wantPresent {
		wantPresent[rank] = rank != victim
	}

	for _, p := range ps.all {
		if p.rank == victim {
			continue
		}

		outcome := p.waitFor("outcome")
		namesVictim := outcome.Kind == kind && slices.Equal(outcome.Ranks, []int{victim})
		if namesVictim {
			namingErrors++
		} else if outcome.Kind != "fault" {
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

// checkNoLeaks waits until all ranks have ended, and checks that they left no process, socket or
// shared memory.
func (ps *processes) checkNoLeaks() {
	ps.t.Helper()
	for _, p := range ps.all {
		_ = p.command.Wait()               // a killed rank causes an error
		const noSignal = syscall.Signal(0) // only checks whether the process exists
		if err := p.command.Process.Signal(noSignal); err == nil {
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

// TestErrorNamesKilledRank kills a rank during each program. The errors of the others must name it.
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

// TestErrorNamesStoppedRank stops a rank for longer than the timeout. The errors of the others must
// name it. After it is resumed, its own call must fail, too.
func TestErrorNamesStoppedRank(t *testing.T) {
	const ranks, victim = 3, 2
	const timeout = 1500 * time.Millisecond // short, because the test waits for it
	ps := startProcesses(t, ranks, "collectives", timeout)
	stopped := ps.all[victim]
	stopped.signal(syscall.SIGSTOP)
	ps.checkErrorsNameVictim("late", victim)
	stopped.signal(syscall.SIGCONT)
	outcome := stopped.waitFor("outcome")
	if outcome.Kind == "close" || outcome.Kind == "start" {
		t.Errorf("the stopped rank got a %q error (%s), want an error of its call", outcome.Kind,
			outcome.Text)
	}

	ps.checkNoLeaks()
}
