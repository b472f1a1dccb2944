package systest

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Patience limits processes that take seconds, and is long enough for a busy machine.
const Patience = 2 * time.Minute

// dumpTime limits the time in which a process past its deadline prints its stacks, and the time for
// which its children may keep its output open after its end.
const dumpTime = 10 * time.Second

// Command prepares a process that gets SIGQUIT after its limit or when the test ends. A Go program
// then prints the stacks of its goroutines and ends. A C program ends. dumpTime later, the process
// is killed, and Wait stops waiting for the end of its output.
func Command(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = dumpTime
	return c
}
