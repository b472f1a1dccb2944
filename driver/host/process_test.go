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

const processTimeout = 60 * time.Second

// processes holds the processes of all ranks, by rank.
type processes struct {
	t         *testing.T
	processes []*process
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

// startProcesses starts a rank process for each rank, and waits until all are running the program.
func startProcesses(t *testing.T, size int, program string, timeout time.Duration) *processes {
	t.Helper()
	socket := "unix:" + filepath.Join(t.TempDir(), "store")
	server, err := rendezvous.Listen(socket, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	all := &processes{t: t}
	for rank := range size {
		all.processes = append(all.processes, start(t, rank, []string{
			programVariable + "=" + program, storeVariable + "=" + socket,
			fmt.Sprintf("%s=%d %d", rankVariable, rank, size),
			timeoutVariable + "=" + timeout.String(),
		}))
	}
	for _, p := range all.processes {
		p.address = p.waitFor("open").Address
	}
	for _, p := range all.processes {
		p.waitFor("running")
	}
	return all
}

// start starts this test binary as a rank. The rank is killed when the test ends.
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
// output.
func (p *process) waitFor(event string) output {
	p.t.Helper()
	for p.lines.Scan() {
		var o output
		if err := json.Unmarshal(p.lines.Bytes(), &o); err != nil {
			p.t.Fatalf("rank %d printed %q: %v", p.rank, p.lines.Text(), err)
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

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.command.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// checkErrorsNameVictim checks the outcomes of all ranks except the victim. At least one rank must
// have an error of the given kind that names the victim. The other ranks may instead have an error
// because that rank has failed. All of them must have completed an exchange on the fault lane
// without the victim.
func (f *processes) checkErrorsNameVictim(kind string, victim int) {
	f.t.Helper()
	namingErrors := 0
	present := make([]bool, len(f.processes))
	for r := range present {
		present[r] = r != victim
	}
	for _, p := range f.processes {
		if p.rank == victim {
			continue
		}
		outcome := p.waitFor("outcome")
		switch {
		case outcome.Kind == kind && slices.Equal(outcome.Ranks, []int{victim}):
			namingErrors++
		case outcome.Kind != "fault":
			f.t.Errorf("rank %d got a %q error that names ranks %v (%s), want a %q error for rank %d",
				p.rank, outcome.Kind, outcome.Ranks, outcome.Text, kind, victim)
		}
		if !slices.Equal(outcome.Present, present) {
			f.t.Errorf("rank %d: ranks present on the fault lane = %v, want %v", p.rank,
				outcome.Present, present)
		}
	}
	if namingErrors == 0 {
		f.t.Errorf("no rank returned a %q error naming rank %d", kind, victim)
	}
}

func (f *processes) checkNoLeaks() {
	f.t.Helper()
	for _, p := range f.processes {
		_ = p.command.Wait() // a killed rank causes an error
		if err := p.command.Process.Signal(syscall.Signal(0)); err == nil {
			f.t.Errorf("rank %d is still running", p.rank)
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range f.processes {
		if strings.Contains(string(sockets), p.address) {
			f.t.Errorf("rank %d left its socket %s", p.rank, p.address)
		}
	}
	names, err := filepath.Glob("/dev/shm/*symmem*")
	if err != nil || len(names) > 0 {
		f.t.Errorf("leaked shared memory: got %v, error %v; want none", names, err)
	}
}

func TestErrorNamesKilledRank(t *testing.T) {
	for program := range programs {
		t.Run(program, func(t *testing.T) {
			f := startProcesses(t, 3, program, processTimeout)
			f.processes[1].signal(syscall.SIGKILL)
			f.checkErrorsNameVictim("lost", 1)
			f.checkNoLeaks()
		})
	}
}

func TestErrorNamesStoppedRank(t *testing.T) {
	f := startProcesses(t, 3, "collectives", 1500*time.Millisecond)
	f.processes[2].signal(syscall.SIGSTOP)
	f.checkErrorsNameVictim("late", 2)
	f.processes[2].signal(syscall.SIGCONT)
	if n := f.processes[2].waitFor("outcome"); n.Kind == "close" || n.Kind == "start" {
		t.Errorf("the stopped rank got a %q error (%s), want a fault", n.Kind, n.Text)
	}
	f.checkNoLeaks()
}
