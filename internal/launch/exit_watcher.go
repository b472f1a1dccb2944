package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// exitWatcher reports ranks in the order in which their processes exit. A goroutine for each rank
// would not keep this order. When a rank is lost, others fail within a millisecond, so only the
// order identifies the lost one.
type exitWatcher struct {
	epoll   int              // descriptor from epoll_create1(2)
	watched map[int]*os.File // descriptors of the processes by rank, see sys.Pidfd
}

// newExitWatcher returns an exitWatcher, which the caller must close.
func newExitWatcher() (*exitWatcher, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}

	return &exitWatcher{epoll: epoll, watched: map[int]*os.File{}}, nil
}

// add watches a rank's process, which must not be reaped before waitForExits has reported it.
func (w *exitWatcher) add(number, pid int) error {
	process, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	w.watched[number] = process
	// The kernel returns the field Fd with each event. It need not be a descriptor.
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(number)}
	err = syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, int(process.Fd()), &event)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	return nil
}

// waitForExits calls report for each exit, and returns after the last one.
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

// forget removes a rank. It removes the process's descriptor from the epoll set before it closes
// the descriptor. Closing is not sufficient, because a child that was just forked may have a copy.
func (w *exitWatcher) forget(number int) {
	process := w.watched[number]
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
