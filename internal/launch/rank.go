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

	"symmem/internal/sys"
)

// rank is a process of the job. It leads a process group, which contains its child processes, such
// as data loaders. The launcher signals the whole group.
type rank struct {
	// These fields do not change after start.
	number         int // from 0
	cmd            *exec.Cmd
	stdout, stderr *lineWriter

	mu       sync.Mutex
	isReaped bool // guarded by mu; afterwards, the kernel may reuse the process ID
}

// maxOutputWait limits how long a rank's output is read after its exit. A daemon that the rank has
// started may keep the output pipe open forever.
const maxOutputWait = 2 * time.Second

// start starts the process with stdin, or with an empty input if stdin is nil. The kernel kills the
// process when the calling thread exits, so the caller must have called runtime.LockOSThread.
func (r *rank) start(stdin io.Reader) error {
	r.cmd.Stdout = r.stdout
	r.cmd.Stderr = r.stderr
	r.cmd.WaitDelay = maxOutputWait
	r.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // creates the process group
		Pdeathsig: syscall.SIGKILL, // when the calling thread exits
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

// signal sends a signal to the process group if the process was not reaped.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isReaped {
		group := -r.cmd.Process.Pid // kill(2) takes a negative ID for a group
		_ = syscall.Kill(group, s)  // fails if the group is empty
	}
}

// cleanUp kills the process group, reaps the process, and waits up to maxOutputWait for the end of
// its output.
func (r *rank) cleanUp(exitIndex int) Exit {
	r.signal(syscall.SIGKILL) // before the kernel can reuse the group ID
	r.mu.Lock()
	r.isReaped = true
	r.mu.Unlock()
	_ = r.cmd.Wait() // ProcessState has the exit code, and the sinks report output errors.
	r.stdout.flush()
	r.stderr.flush()
	return newExit(r.number, r.cmd.ProcessState, exitIndex)
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

// Exit describes how one rank exited.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code or, as in shells, 128 + Signal.
	Code      int            `json:"code"`
	Signal    syscall.Signal `json:"signal,omitempty"` // signal that killed the rank, or 0
	exitIndex int            // position in the order of exits
}

func newExit(number int, state *os.ProcessState, exitIndex int) Exit {
	e := Exit{Rank: number, PID: state.Pid(), Code: state.ExitCode(), exitIndex: exitIndex}
	status, isUnix := state.Sys().(syscall.WaitStatus)
	if isUnix && status.Signaled() {
		e.Signal = status.Signal()
		e.Code = 128 + int(e.Signal)
	}

	return e
}

func (e Exit) String() string {
	switch {
	case e.Signal != 0:
		return fmt.Sprintf("rank %d (process %d) was killed by signal %d (%s)",
			e.Rank, e.PID, int(e.Signal), e.Signal)
	case e.Code != 0:
		return fmt.Sprintf("rank %d (process %d) failed with code %d", e.Rank, e.PID, e.Code)
	}

	return fmt.Sprintf("rank %d (process %d) exited successfully", e.Rank, e.PID)
}

// exitWatcher reports ranks in the order in which they exit, because the first failure usually
// causes the others. epoll preserves the order, unlike a goroutine for each rank.
type exitWatcher struct {
	epollFD int
	pidfds  map[int]*os.File // by rank number, of the ranks that have not exited
}

// newExitWatcher returns an exitWatcher. The caller must close it.
func newExitWatcher() (*exitWatcher, error) {
	epollFD, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}

	return &exitWatcher{epollFD: epollFD, pidfds: map[int]*os.File{}}, nil
}

// add starts to watch a rank. The caller must not reap the process before waitForExits has reported
// the rank. add must not run during waitForExits.
func (w *exitWatcher) add(number, pid int) error {
	pidfd, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	// The kernel does not interpret Fd, but returns it with each event.
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(number)}
	err = syscall.EpollCtl(w.epollFD, syscall.EPOLL_CTL_ADD, int(pidfd.Fd()), &event)
	if err != nil {
		_ = pidfd.Close()
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	w.pidfds[number] = pidfd
	return nil
}

// waitForExits calls report for each rank that exits, and returns when no rank is left.
func (w *exitWatcher) waitForExits(report func(number int)) error {
	const (
		noTimeout = -1
		maxEvents = 64 // per call; arbitrary
	)
	for len(w.pidfds) > 0 {
		var events [maxEvents]syscall.EpollEvent
		eventCount, err := syscall.EpollWait(w.epollFD, events[:], noTimeout)
		if err == syscall.EINTR {
			continue
		}

		if err != nil {
			return fmt.Errorf("watching the ranks: %w", err)
		}

		for _, event := range events[:eventCount] {
			number := int(event.Fd)
			w.forget(number)
			report(number)
		}
	}

	return nil
}

// forget stops watching a rank. It needs EPOLL_CTL_DEL, because a forked process may have a copy of
// the pidfd, which prevents Close from ending the events.
func (w *exitWatcher) forget(number int) {
	pidfd := w.pidfds[number]
	_ = syscall.EpollCtl(w.epollFD, syscall.EPOLL_CTL_DEL, int(pidfd.Fd()), nil)
	_ = pidfd.Close()
	delete(w.pidfds, number)
}

// close releases all descriptors.
func (w *exitWatcher) close() {
	for number := range w.pidfds {
		w.forget(number)
	}

	_ = syscall.Close(w.epollFD)
}
