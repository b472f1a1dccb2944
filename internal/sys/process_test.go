package sys

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/sys/systest"
)

// patience bounds what should not take long at all.
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

func TestPidfdTellsTheEndOfAProcess(t *testing.T) {
	first, _ := newSleeper(t)
	second, _ := newSleeper(t)
	var watches []*os.File
	for _, c := range []*exec.Cmd{first, second} {
		f, err := Pidfd(c.Process.Pid)
		check(t, err)
		defer f.Close()
		watches = append(watches, f)
	}
	ended, err := WaitReadable(watches, 0)
	check(t, err)
	if len(ended) != 0 {
		t.Errorf("processes %v have ended", ended)
	}
	check(t, second.Process.Signal(syscall.SIGKILL))
	ended, err = WaitReadable(watches, patience)
	check(t, err)
	if len(ended) != 1 || ended[0] != 1 {
		t.Errorf("processes %v have ended, want [1]", ended)
	}
}

func TestProcessThatIsGoneCannotBeWatched(t *testing.T) {
	command, input := newSleeper(t)
	check(t, input.Close())
	check(t, command.Wait())
	if f, err := Pidfd(command.Process.Pid); err == nil {
		check(t, f.Close())
		t.Error("a process that is gone can be watched")
	}
}

func TestMachineHasAnIdentity(t *testing.T) {
	boot, err := BootID()
	check(t, err)
	if len(boot) != 36 || strings.Count(boot, "-") != 4 {
		t.Errorf("the boot id is %q", boot)
	}
	namespace, err := Namespace()
	check(t, err)
	if !strings.HasPrefix(namespace, "net:[") {
		t.Errorf("the network namespace is %q", namespace)
	}
}

func TestMachineHasMemoryAndProcessors(t *testing.T) {
	total, err := Memory()
	check(t, err)
	if total < 64<<20 {
		t.Errorf("the machine has %d bytes", total)
	}
	if Cores() < 1 {
		t.Errorf("the machine has %d processors", Cores())
	}
}

func TestMonotonicClockNeverGoesBack(t *testing.T) {
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
