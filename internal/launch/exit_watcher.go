package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// exitWatcher reports the processes of a job, called ranks, in the order in which they exit. The
// first exit usually explains the others: if rank 2 crashes, ranks 0 and 1 lose their connections.
// One epoll instance preserves the order. Goroutines that wait for one rank each would not.
type exitWatcher struct {
	epollFD int
	pidfds  map[int]*os.File // by rank; only running ranks
}

// newExitWatcher returns an exitWatcher, which the caller must close.
func newExitWatcher() (*exitWatcher, error) {
	epollFD, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}

	return &exitWatcher{epollFD: epollFD, pidfds: map[int]*os.File{}}, nil
}

// add starts to watch a rank. The caller must not reap the process before waitForExits has reported
// the rank.
func (w *exitWatcher) add(rank, pid int) error {
	pidfd, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", rank, err)
	}

	w.pidfds[rank] = pidfd
	// Despite its name, Fd is user data, which the kernel returns with each event.
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(rank)}
	err = syscall.EpollCtl(w.epollFD, syscall.EPOLL_CTL_ADD, int(pidfd.Fd()), &event)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", rank, err)
	}

	return nil
}

// waitForExits calls report for each rank that exits, and returns when no rank is left.
func (w *exitWatcher) waitForExits(report func(rank int)) error {
	const (
		noTimeout = -1
		maxEvents = 64 // per system call; arbitrary
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
			rank := int(event.Fd)
			w.forget(rank)
			report(rank)
		}
	}

	return nil
}

// forget stops watching a rank. Without EPOLL_CTL_DEL, events would continue after Close while a
// newly forked process still has a copy of the descriptor.
func (w *exitWatcher) forget(rank int) {
	pidfd := w.pidfds[rank]
	// Neither call fails for an open descriptor.
	_ = syscall.EpollCtl(w.epollFD, syscall.EPOLL_CTL_DEL, int(pidfd.Fd()), nil)
	_ = pidfd.Close()
	delete(w.pidfds, rank)
}

// close releases all descriptors.
func (w *exitWatcher) close() {
	for rank := range w.pidfds {
		w.forget(rank)
	}

	_ = syscall.Close(w.epollFD) // does not fail for an open descriptor
}
