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

// maxOutputWait limits the wait for the end of output after a rank has exited. A daemon that
// a rank has started may keep the pipe open forever.
const maxOutputWait = 2 * time.Second

// rank is a process of the job, and leads a process group. The launcher signals the whole group,
// because child processes, such as data loaders, belong to it.
type rank struct {
	// These fields do not change after start.
	number         int // from 0
	cmd            *exec.Cmd
	stdout, stderr *lineWriter

	mu       sync.Mutex
	isReaped bool // set before the kernel can reuse the process ID; guarded by mu
}

// start starts the process with stdin, or with an empty input if stdin is nil. The caller must have
// called runtime.LockOSThread, because the kernel kills the process when the calling thread exits.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout = r.stdout
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = maxOutputWait
	r.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // creates the process group
		Pdeathsig: syscall.SIGKILL, // when the parent thread exits
	}
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
		go copyInput(stdinPipe, stdin) // leaks if a read from stdin never returns
	}

	return nil
}

func copyInput(stdinPipe io.WriteCloser, stdin io.Reader) {
	_, _ = io.Copy(stdinPipe, stdin) // fails if the process does not read all of stdin
	_ = stdinPipe.Close()            // fails if Wait has closed the pipe
}

// signal sends a signal to the process group, unless the process was reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isReaped {
		group := -r.cmd.Process.Pid // kill(2) takes a negative ID for a group
		_ = syscall.Kill(group, s)  // fails if the group is empty
	}
}

// cleanUp kills the process group, reaps the process, and waits up to maxOutputWait for the end of
// output. exitIndex is stored in the Exit.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL) // before Wait, after which the kernel can reuse the group's ID
	r.mu.Lock()
	r.isReaped = true
	r.mu.Unlock()
	_ = r.cmd.Wait() // describeExit reports the exit code, and the sinks report output errors.
	r.stdout.flush()
	r.stderr.flush()
	e := r.describeExit()
	e.exitIndex = exitIndex
	return e
}

// describe returns a text such as "rank 1, process 7, stopped" for messages.
func (r *rank) describe() string {
	pid := r.cmd.Process.Pid
	if isStopped(pid) {
		return fmt.Sprintf("rank %d, process %d, stopped", r.number, pid)
	}

	return fmt.Sprintf("rank %d, process %d", r.number, pid)
}

// isStopped reports whether a process was stopped, for example by SIGSTOP.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}

	// The format is "PID (NAME) STATE ...". NAME may contain parentheses.
	nameEnd := bytes.LastIndexByte(stat, ')')
	afterName := stat[nameEnd+1:]
	return bytes.HasPrefix(afterName, []byte(" T"))
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
