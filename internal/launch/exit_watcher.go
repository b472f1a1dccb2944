package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// exitWatcher reports the processes of a job, called ranks, in the order in which they exit. The
// first is usually the cause: if rank 2 crashes, the others exit within a millisecond. An epoll
// descriptor keeps this order, whereas a goroutine for each rank would not.
type exitWatcher struct {
	epoll   int              // file descriptor, see epoll(7)
	watched map[int]*os.File // process descriptors by rank, see sys.Pidfd
}

// newExitWatcher returns an exitWatcher, which the caller must close.
func newExitWatcher() (*exitWatcher, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}

	return &exitWatcher{epoll: epoll, watched: map[int]*os.File{}}, nil
}

// add starts to watch a rank. Its process must not be reaped before its exit has been reported.
func (w *exitWatcher) add(number, pid int) error {
	process, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	w.watched[number] = process
	// Fd is user data, which the kernel returns with each event.
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(number)}
	err = syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, int(process.Fd()), &event)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	return nil
}

// waitForExits calls report for each rank that exits, and returns after the last one.
func (w *exitWatcher) waitForExits(report func(rank int)) error {
	const noTimeout = -1
	for len(w.watched) > 0 {
		var events [64]syscall.EpollEvent
		eventCount, err := syscall.EpollWait(w.epoll, events[:], noTimeout)
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

// forget stops watching a rank. Close alone would not stop the events, because a child process that
// was just forked may have a copy of the descriptor.
func (w *exitWatcher) forget(number int) {
	process := w.watched[number]
	// Neither call fails for a valid descriptor.
	_ = syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_DEL, int(process.Fd()), nil)
	_ = process.Close()
	delete(w.watched, number)
}

// close releases all descriptors.
func (w *exitWatcher) close() {
	for number := range w.watched {
		w.forget(number)
	}

	_ = syscall.Close(w.epoll)
}
