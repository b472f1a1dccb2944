package sys

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/sys/systest"
)

// patience bounds waits that should be short.
const patience = 30 * time.Second

// newSleeper starts a process that ends when its standard input does.
func newSleeper(t *testing.T) (*exec.Cmd, io.Closer) {
	t.Helper()
	command := systest.Command(t, systest.Patience, "cat")
	input, err := command.StdinPipe()
	check(t, err)
	check(t, command.Start())
	t.Cleanup(func() {
		input.Close()
		_ = command.Wait()
	})
	return command, input
}

func TestPidfdReportsTheEndOfAProcess(t *testing.T) {
	command, _ := newSleeper(t)
	f, err := Pidfd(command.Process.Pid)
	check(t, err)
	defer f.Close()
	check(t, f.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if err := AwaitEnd(f); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v for a process that lives, want ErrDeadlineExceeded", err)
	}
	check(t, command.Process.Signal(syscall.SIGKILL))
	check(t, f.SetReadDeadline(time.Now().Add(patience)))
	check(t, AwaitEnd(f))
}

func TestPidfdOfAnEndedProcess(t *testing.T) {
	command, input := newSleeper(t)
	check(t, input.Close())
	check(t, command.Wait())
	if f, err := Pidfd(command.Process.Pid); err == nil {
		check(t, f.Close())
		t.Error("a process that is gone can be watched")
	}
}

func TestBootIDAndNamespace(t *testing.T) {
	boot, err := BootID()
	check(t, err)
	if len(boot) != 36 || strings.Count(boot, "-") != 4 {
		t.Errorf("the boot id is %q", boot)
	}
	for _, kind := range []string{"net", "pid"} {
		namespace, err := Namespace(kind)
		check(t, err)
		if !strings.HasPrefix(namespace, kind+":[") {
			t.Errorf("the %s namespace is %q", kind, namespace)
		}
	}
}

func TestMemoryAndCores(t *testing.T) {
	total, err := Memory()
	check(t, err)
	if total < 64<<20 {
		t.Errorf("the machine has %d bytes", total)
	}
	if Cores() < 1 {
		t.Errorf("the machine has %d processors", Cores())
	}
}

func TestMonotonicClockIsMonotonic(t *testing.T) {
	last := Monotonic()
	if last == 0 {
		t.Fatal("the clock cannot be read")
	}
	for range 1000 {
		now := Monotonic()
		if now < last {
			t.Fatalf("the clock went from %d to %d", last, now)
		}
		last = now
	}
}
