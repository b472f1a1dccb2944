package systest

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Patience is the time limit for processes that normally take seconds.
const Patience = 2 * time.Minute

// dumpTime is the time to print stacks after the time limit.
const dumpTime = 10 * time.Second

// Command returns a command that gets SIGQUIT after its time limit or at the end of the test, so
// that a Go program prints its stacks.
func Command(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = dumpTime
	return c
}
