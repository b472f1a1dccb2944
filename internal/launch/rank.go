package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// orphanWait limits the wait for output that processes outside the rank's group keep open.
const orphanWait = 2 * time.Second

// rank is a rank's process, from start until end returns.
type rank struct {
	// Immutable after start.
	number   int
	cmd      *exec.Cmd
	out, err *lines

	mu sync.Mutex
	// reaped is set when the process ID may be reused; guarded by mu.
	reaped bool
}

// start starts the process.
//
// The calling goroutine must be locked to a thread that outlives the process. When that thread
// ends, the kernel sends SIGKILL to the process.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.err
	r.cmd.WaitDelay = orphanWait
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var feed io.WriteCloser
	if stdin != nil {
		var err error
		if feed, err = r.cmd.StdinPipe(); err != nil {
			return fmt.Errorf("starting rank %d: %w", r.number, err)
		}
	}
	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("starting rank %d: %w", r.number, err)
	}
	if feed != nil {
		// Nothing waits for this goroutine, because the read from stdin may block forever. The end
		// of the rank closes the pipe.
		go func() {
			_, _ = io.Copy(feed, stdin)
			_ = feed.Close()
		}()
	}
	return nil
}

// signal sends a signal to the rank's process group unless the rank has been reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reaped {
		_ = syscall.Kill(-r.cmd.Process.Pid, s) // fails only if the group is already empty
	}
}

// end cleans up after a rank that has ended: it kills the rest of the rank's group, waits for all
// output, and returns the rank's Exit. endIndex is the rank's position in the order of ends. The
// rank is reaped after the kill, because the process ID and the group ID could be reused then.
func (r *rank) end(endIndex int) Exit {
	r.signal(syscall.SIGKILL)
	r.mu.Lock()
	r.reaped = true
	r.mu.Unlock()
	// Wait's error repeats the state, which is read below, or is an output error, which the sinks
	// keep. After Wait no goroutine copies output, even if a process outside the group keeps the
	// pipe open.
	_ = r.cmd.Wait()
	r.out.flush()
	r.err.flush()
	e := r.exit()
	e.endIndex = endIndex
	return e
}

// describe names the rank and its process, and whether the process is stopped, as by SIGSTOP. A
// stopped process can neither work nor end.
func (r *rank) describe() string {
	pid := r.cmd.Process.Pid
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name in parentheses may contain anything. The state follows the name.
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	if err == nil && strings.HasPrefix(state, "T") {
		return fmt.Sprintf("rank %d, process %d, stopped", r.number, pid)
	}
	return fmt.Sprintf("rank %d, process %d", r.number, pid)
}

func (r *rank) exit() Exit {
	state := r.cmd.ProcessState
	e := Exit{Rank: r.number, PID: state.Pid(), Code: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}
	return e
}
