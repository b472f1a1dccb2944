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

// orphanWait bounds the wait for output that processes outside the rank's group hold open.
const orphanWait = 2 * time.Second

// rank represents a started process. It is running until end has returned.
type rank struct {
	// Immutable after start.
	number   int
	cmd      *exec.Cmd
	out, err *lines

	mu sync.Mutex
	// reaped is guarded by mu. Once it is set, the process id may be reused.
	reaped bool
}

// start starts the process.
//
// Preconditions: the calling goroutine is locked to a thread that outlives the process, as the
// kernel sends SIGKILL to the process when that thread ends.
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
		// This goroutine is not awaited: the reader may block for good, and the end of the rank
		// closes the pipe.
		go func() {
			_, _ = io.Copy(feed, stdin)
			_ = feed.Close()
		}()
	}
	return nil
}

// signal sends a signal to the whole group, unless the rank has been reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reaped {
		// It fails only if the group is empty already.
		_ = syscall.Kill(-r.cmd.Process.Pid, s)
	}
}

// end kills the rest of the group of a rank that has ended, waits for all of its output, and
// returns its Exit. turn is the rank's position in the order of ends. The rank is reaped after the
// kill, since its process id and the group id cannot be reused before.
func (r *rank) end(turn int) Exit {
	r.signal(syscall.SIGKILL)
	r.mu.Lock()
	r.reaped = true
	r.mu.Unlock()
	// The state is read below. Other errors come from outputs, and the sinks keep them. No
	// goroutine copies output after Wait, even if a process outside the group still holds the pipe
	// open.
	_ = r.cmd.Wait()
	r.out.flush()
	r.err.flush()
	e := r.exit()
	e.turn = turn
	return e
}

// describe names the rank and its process, and mentions if it is stopped, as by SIGSTOP: then it
// can neither work nor end.
func (r *rank) describe() string {
	pid := r.cmd.Process.Pid
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name in parentheses may contain anything; the state follows it.
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
