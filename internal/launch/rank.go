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

// maxOutputWait limits the wait for the end of a rank's output after its exit. A daemon that the
// rank has started may keep the output open forever.
const maxOutputWait = 2 * time.Second

// rank is a process of the job. It leads a process group, which also contains the processes that it
// starts, unless these leave the group. The launcher signals whole groups.
//
// When the process has exited, the launcher kills the rest of the group. Then it reaps the process:
// it reads the exit code, after which the kernel may use the process ID for another process.
type rank struct {
	// These fields do not change after start.
	number         int // from 0
	cmd            *exec.Cmd
	stdout, stderr *lineWriter // receive the output

	mu       sync.Mutex
	isReaped bool // set before the process ID can be reused; guarded by mu
}

// start starts the process. Its standard input is a copy of stdin, or empty if stdin is nil.
//
// The caller must be locked to a thread (see runtime.LockOSThread), because the kernel kills the
// process when that thread exits.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout = r.stdout
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = maxOutputWait
	// Setpgid makes the process the leader of a new group. Pdeathsig is the signal that the process
	// gets when its parent thread exits.
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
		// This goroutine may never end, because the read from stdin may block forever.
		go func() {
			_, _ = io.Copy(stdinPipe, stdin) // fails if the rank does not read all input
			_ = stdinPipe.Close()
		}()
	}

	return nil
}

// signal sends a signal to the rank's process group. It has no effect after the rank was reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isReaped {
		processGroup := -r.cmd.Process.Pid // to kill(2), a negative number means a group
		_ = syscall.Kill(processGroup, s)  // fails only if the group is already empty
	}
}

// cleanUp is called after a rank's process has exited. It kills the rest of the process group,
// reaps the process, and waits up to maxOutputWait for its output. exitIndex is the position of
// this exit in the order of all exits.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL) // before the ID of the group can be reused
	r.mu.Lock()
	r.isReaped = true
	r.mu.Unlock()
	// Wait reaps the process, and returns when no goroutine copies output any more. Ignore its error:
	// describeExit reads the exit code, and the sinks of stdout and stderr keep errors of the output.
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
	// The text is "PID (NAME) STATE ...". The name may contain any character, even parentheses.
	nameEnd := bytes.LastIndexByte(stat, ')')
	const stoppedState = " T"
	isStopped := err == nil && bytes.HasPrefix(stat[nameEnd+1:], []byte(stoppedState))
	if isStopped {
		return fmt.Sprintf("rank %d, process %d, stopped", r.number, pid)
	}

	return fmt.Sprintf("rank %d, process %d", r.number, pid)
}

// describeExit returns the Exit of a rank that was reaped, without its exitIndex.
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
