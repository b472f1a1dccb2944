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

// maxOutputWait limits the wait for a rank's output after its exit. Processes outside its process
// group may keep the output open.
const maxOutputWait = 2 * time.Second

// rank is a process of the job.
type rank struct {
	// Immutable after start.
	number         int
	cmd            *exec.Cmd
	stdout, stderr *lineWriter // receive the output

	mu       sync.Mutex
	isReaped bool // set before the process ID can be reused; guarded by mu
}

// start starts the process with a copy of stdin, or empty input if stdin is nil. The caller must
// be locked to a thread, because the kernel kills the process when that thread exits.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout, r.cmd.Stderr = r.stdout, r.stderr
	r.cmd.WaitDelay = maxOutputWait
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

// signal sends a signal to the rank's process group, unless the rank was reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isReaped {
		_ = syscall.Kill(-r.cmd.Process.Pid, s) // fails only if the group is already empty
	}
}

// cleanUp kills the rest of an exited rank's process group, reaps the rank, and waits up to
// maxOutputWait for its output. It kills before it reaps, because the ID of the group can be
// reused when the rank was reaped. exitIndex counts the exits of all ranks.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL)
	r.mu.Lock()
	r.isReaped = true
	r.mu.Unlock()
	// Wait returns the process state or an output error, which the sinks keep. After Wait, no
	// goroutine copies output.
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
	// The state follows the process name, which is in parentheses and may contain any character.
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	if err == nil && strings.HasPrefix(state, "T") {
		return fmt.Sprintf("rank %d, process %d, stopped", r.number, pid)
	}
	return fmt.Sprintf("rank %d, process %d", r.number, pid)
}

// describeExit returns the Exit of a rank that was reaped, without its exitIndex.
func (r *rank) describeExit() Exit {
	state := r.cmd.ProcessState
	e := Exit{Rank: r.number, PID: state.Pid(), Code: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}
	return e
}
