package sys

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem/internal/sys/systest"
)

const testTimeout = 30 * time.Second

// startIdleProcess starts a process that exits when stdin is closed.
func startIdleProcess(t *testing.T) (command *exec.Cmd, stdin io.Closer) {
	t.Helper()
	command = systest.Command(t, systest.Patience, "cat")
	stdin, err := command.StdinPipe()
	check(t, err)
	check(t, command.Start())
	t.Cleanup(func() {
		stdin.Close()
		_ = command.Wait()
	})
	return command, stdin
}

func TestAwaitEndWaitsForProcess(t *testing.T) {
	const shortWait = 50 * time.Millisecond // arbitrary
	command, _ := startIdleProcess(t)
	pidfd, err := Pidfd(command.Process.Pid)
	check(t, err)
	defer pidfd.Close()
	check(t, pidfd.SetReadDeadline(time.Now().Add(shortWait)))
	if err := AwaitEnd(pidfd); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("AwaitEnd of a running process = %v, want ErrDeadlineExceeded", err)
	}

	if HasEnded(pidfd) {
		t.Error("HasEnded of a running process = true, want false")
	}

	check(t, command.Process.Signal(syscall.SIGKILL))
	check(t, pidfd.SetReadDeadline(time.Now().Add(testTimeout)))
	check(t, AwaitEnd(pidfd))
	if !HasEnded(pidfd) {
		t.Error("HasEnded of a killed process = false, want true")
	}
}

func TestIsStopped(t *testing.T) {
	command, _ := startIdleProcess(t)
	pid := command.Process.Pid
	for _, c := range []struct {
		signal      syscall.Signal
		wantStopped bool
	}{
		{signal: syscall.SIGSTOP, wantStopped: true},
		{signal: syscall.SIGCONT, wantStopped: false},
		{signal: syscall.SIGSTOP, wantStopped: true},
	} {
		check(t, command.Process.Signal(c.signal))
		// The signal may take effect after Signal has returned.
		begin := time.Now()
		for IsStopped(pid) != c.wantStopped && time.Since(begin) < testTimeout {
			runtime.Gosched()
		}

		if got := IsStopped(pid); got != c.wantStopped {
			t.Errorf("after %v: IsStopped = %t, want %t", c.signal, got, c.wantStopped)
		}
	}

	check(t, command.Process.Kill())
	_ = command.Wait() // returns an error, because the process was killed
	if IsStopped(pid) {
		t.Error("IsStopped = true for a process that has exited, want false")
	}
}

func TestPidfdOfExitedProcessFails(t *testing.T) {
	command, stdin := startIdleProcess(t)
	check(t, stdin.Close())  // lets the process exit
	check(t, command.Wait()) // frees the process ID
	if f, err := Pidfd(command.Process.Pid); err == nil {
		check(t, f.Close())
		t.Error("Pidfd of an exited process returned no error")
	}
}

func TestBootIDAndNamespace(t *testing.T) {
	boot, err := BootID()
	check(t, err)
	const uuidLength, uuidHyphens = 36, 4
	isUUID := len(boot) == uuidLength && strings.Count(boot, "-") == uuidHyphens
	if !isUUID {
		t.Errorf("BootID = %q, want a UUID", boot)
	}

	for _, kind := range []string{"net", "pid"} {
		namespace, err := Namespace(kind)
		check(t, err)
		wantPrefix := kind + ":[" // as in "net:[4026531840]"
		if !strings.HasPrefix(namespace, wantPrefix) {
			t.Errorf("Namespace(%q) = %q, want prefix %q", kind, namespace, wantPrefix)
		}
	}
}

func TestEmptyIDFileIsAnError(t *testing.T) {
	for _, text := range []string{"", "\n"} {
		path := filepath.Join(t.TempDir(), "boot_id")
		check(t, os.WriteFile(path, []byte(text), 0o600))
		if id, err := readBootID(path); err == nil {
			t.Errorf("readBootID of a file that contains %q = %q, want an error", text, id)
		}
	}
}

func TestMemoryAndCores(t *testing.T) {
	total, err := Memory()
	check(t, err)
	const leastMemory = 64 << 20 // less than any machine has
	if total < leastMemory {
		t.Errorf("Memory = %d, want at least %d", total, leastMemory)
	}

	if Cores() < 1 {
		t.Errorf("Cores = %d, want at least 1", Cores())
	}
}

func TestMonotonicNeverDecreases(t *testing.T) {
	last := Monotonic()
	if last == 0 {
		t.Fatal("Monotonic = 0, which means that the clock cannot be read")
	}

	for range 1000 {
		now := Monotonic()
		if now < last {
			t.Fatalf("Monotonic = %d after %d, want no decrease", now, last)
		}

		last = now
	}
}
