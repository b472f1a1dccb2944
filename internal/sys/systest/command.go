package systest

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Patience is the deadline of processes that take seconds, also on a machine that has much to do.
const Patience = 2 * time.Minute

// lastWords is how long a process that is over its deadline may take to write where it was, and how
// long what it has started may hold its output open after its end.
const lastWords = 10 * time.Second

// Command prepares a process that gets SIGQUIT when its limit is over, or when the test ends: one
// of Go writes the stacks of its goroutines then, and one of C ends. Some seconds later it is
// killed, and Wait does not wait any longer for the end of its output.
func Command(t testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGQUIT) }
	c.WaitDelay = lastWords
	return c
}
