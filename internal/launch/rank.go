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

// orphanWait bounds how long the launcher waits for the output of a rank that has exited. Processes
// outside the rank's group may keep the output open.
const orphanWait = 2 * time.Second

type rank struct {
	// Immutable after start.
	number   int
	cmd      *exec.Cmd
	out, err *lineWriter

	mu sync.Mutex
	// reaped is set before the process ID may be reused. It is guarded by mu.
	reaped bool
}

// start starts the process. The caller must run on a locked thread that outlives the process,
// because the kernel kills the process when that thread exits.
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
		// Nothing waits for this goroutine, because the read from stdin may block forever.
		go func() {
			_, _ = io.Copy(feed, stdin)
			_ = feed.Close()
		}()
	}
	return nil
}

func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reaped {
		_ = syscall.Kill(-r.cmd.Process.Pid, s) // fails only if the group is already empty
	}
}

// cleanUp kills the rest of an exited rank's group, reaps the rank, and waits for all output. The
// kill comes first, because the group ID may be reused after the rank has been reaped.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL)
	r.mu.Lock()
	r.reaped = true
	r.mu.Unlock()
	// Wait's error repeats the process state, or is an output error, which the sinks keep. After
	// Wait, no goroutine copies output.
	_ = r.cmd.Wait()
	r.out.flush()
	r.err.flush()
	e := r.exit()
	e.exitIndex = exitIndex
	return e
}

// describe returns the rank's number and process ID, and whether the process is stopped.
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

func (r *rank) exit() Exit {
	state := r.cmd.ProcessState
	e := Exit{Rank: r.number, PID: state.Pid(), Code: state.ExitCode()}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}
	return e
}
