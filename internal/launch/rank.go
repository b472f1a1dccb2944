package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// maxOutputWait limits the wait for the end of output after a process has exited. A daemon that it
// started may keep the pipe open forever.
const maxOutputWait = 2 * time.Second

// rank is a process of the job. It leads a process group, which its child processes inherit. The
// launcher signals whole groups.
type rank struct {
	// These fields do not change after start.
	number         int // from 0
	cmd            *exec.Cmd
	stdout, stderr *lineWriter

	mu       sync.Mutex
	isReaped bool // set before the kernel can reuse the process ID; guarded by mu
}

// start starts the process and copies stdin, if not nil, to it. The caller must have called
// runtime.LockOSThread, because the kernel kills the process when this thread exits.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout = r.stdout
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = maxOutputWait
	// Setpgid creates the process group. Pdeathsig is sent when the parent thread exits.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var stdinPipe io.WriteCloser
	if stdin != nil {
		var err error
		stdinPipe, err = r.cmd.StdinPipe()
		if err != nil {
			return fmt.Errorf("starting rank %d: %w", r.number, err)
		}
	}

	if err := r.cmd.Start(); err != nil {
		return fmt.Errorf("starting rank %d: %w", r.number, err)
	}

	if stdinPipe != nil {
		// This goroutine leaks if a read from stdin never returns.
		go func() {
			_, _ = io.Copy(stdinPipe, stdin) // fails if the process does not read all of stdin
			_ = stdinPipe.Close()            // fails if Wait has closed the pipe
		}()
	}

	return nil
}

// signal signals the process group. It has no effect after the process was reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isReaped {
		group := -r.cmd.Process.Pid // kill(2) takes a negative ID for a group
		_ = syscall.Kill(group, s)  // fails if the group is empty
	}
}

// cleanUp handles the exit of the process. It kills the rest of the group, reaps the process, and
// waits up to maxOutputWait for the end of output. exitIndex orders the exits of all ranks.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL) // before the kernel can reuse the ID of the group
	r.mu.Lock()
	r.isReaped = true
	r.mu.Unlock()
	// describeExit reports the exit code, and the sinks report output errors.
	_ = r.cmd.Wait()
	r.stdout.flush()
	r.stderr.flush()
	e := r.describeExit()
	e.exitIndex = exitIndex
	return e
}

// describe returns a text such as "rank 1, process 7, stopped" for messages.
func (r *rank) describe() string {
	pid := r.cmd.Process.Pid
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The format is "PID (NAME) STATE ...". NAME may contain parentheses.
	nameEnd := bytes.LastIndexByte(stat, ')')
	const stoppedState = " T"
	isStopped := err == nil && bytes.HasPrefix(stat[nameEnd+1:], []byte(stoppedState))
	if isStopped {
		return fmt.Sprintf("rank %d, process %d, stopped", r.number, pid)
	}

	return fmt.Sprintf("rank %d, process %d", r.number, pid)
}

// describeExit returns the Exit of a reaped process, without its exitIndex.
func (r *rank) describeExit() Exit {
	state := r.cmd.ProcessState
	e := Exit{Rank: r.number, PID: state.Pid(), Code: state.ExitCode()}
	status, isKnown := state.Sys().(syscall.WaitStatus)
	if isKnown && status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal) // as in shells
	}

	return e
}
