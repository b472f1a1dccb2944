package systest

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Patience is a generous time limit for processes that normally take seconds.
const Patience = 2 * time.Minute

// dumpTime limits how long a process may print its stacks after its deadline, and how long its
// children may keep its output open.
const dumpTime = 10 * time.Second

// Command prepares a process that gets SIGQUIT when its time limit expires or the test ends. A Go
// program then prints the stacks of its goroutines and exits. If the process is still running after
// dumpTime, it is killed.
func Command(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = dumpTime
	return c
}
