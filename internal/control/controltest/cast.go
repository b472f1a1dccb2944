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

// cast is a group of ranks that are processes of their own; each plays a scene of waits.
type cast []*actor

// actor is one rank of a cast, as its test sees it.
type actor struct {
	t       testing.TB
	rank    int
	command *exec.Cmd
	lines   *bufio.Scanner
}

// newCast starts ranks and waits until all of them have played the scene for a while.
func newCast(t *testing.T, size int, scene string, timeout time.Duration) cast {
	t.Helper()
	socket := openStore(t)
	var c cast
	for rank := range size {
		c = append(c, start(t, rank, script{
			Scene: scene, Store: socket, Rank: rank, Size: size, Timeout: timeout,
		}))
	}
	for _, a := range c {
		a.await("running")
	}
	return c
}

// openStore serves a store for a cast.
func openStore(t testing.TB) (address string) {
	t.Helper()
	address = "unix:" + filepath.Join(t.TempDir(), "store")
	server, err := rendezvous.Listen(address, "")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return address
}

// start runs this test's program as a rank. It is killed at the end of the test at the latest.
func start(t testing.TB, rank int, s script) *actor {
	t.Helper()
	text, err := json.Marshal(s)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	command := exec.CommandContext(ctx, self)
	command.Env = append(os.Environ(), scriptVariable+"="+string(text))
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
	return &actor{t: t, rank: rank, command: command, lines: bufio.NewScanner(output)}
}

// await reads notices up to one with the given event.
func (a *actor) await(event string) notice {
	a.t.Helper()
	for a.lines.Scan() {
		var n notice
		if err := json.Unmarshal(a.lines.Bytes(), &n); err != nil {
			a.t.Fatalf("rank %d says %q: %v", a.rank, a.lines.Text(), err)
		}
		if n.Event == event {
			return n
		}
		if n.Event == "outcome" {
			a.t.Fatalf("rank %d ended before %q: %+v", a.rank, event, n)
		}
	}
	a.t.Fatalf("rank %d ended without %q: %v", a.rank, event, a.lines.Err())
	return notice{}
}

func (a *actor) signal(s syscall.Signal) {
	a.t.Helper()
	if err := a.command.Process.Signal(s); err != nil {
		a.t.Fatal(fmt.Errorf("signalling rank %d: %w", a.rank, err))
	}
}
