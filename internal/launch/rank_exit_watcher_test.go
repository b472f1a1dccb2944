package launch

import (
	"os/exec"
	"slices"
	"syscall"
	"testing"
)

// TestExitIsReportedOnce duplicates the pidfd of a watched process, because a child that
// another goroutine forks also has a copy until it calls exec.
func TestExitIsReportedOnce(t *testing.T) {
	watcher, err := newExitWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.close()
	processes := make([]*exec.Cmd, 2)
	for number := range processes {
		c := exec.CommandContext(t.Context(), "cat")
		if _, err := c.StdinPipe(); err != nil {
			t.Fatal(err)
		}

		if err := c.Start(); err != nil {
			t.Fatal(err)
		}

		processes[number] = c
		if err := watcher.add(number, c.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}

	duplicate, err := syscall.Dup(int(watcher.pidfds[0].Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(duplicate)
	kill := func(number int) {
		if err := processes[number].Process.Kill(); err != nil {
			t.Error(err)
		}
	}
	kill(0)
	var exited []int
	err = watcher.waitForExits(func(number int) {
		if exited = append(exited, number); len(exited) == 1 {
			kill(1)
		}
	})
	if err != nil || !slices.Equal(exited, []int{0, 1}) {
		t.Errorf("waitForExits reported ranks %v and returned %v; want [0 1] and no error", exited, err)
	}

	for _, c := range processes {
		_ = c.Wait()
	}
}
