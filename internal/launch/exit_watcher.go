package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// exitWatcher reports ranks in the order in which their processes exit. If rank 2 crashes, for
// example, ranks 0 and 1 notice this and exit, too, within a millisecond. Only the order of the
// exits shows that rank 2 was the first.
//
// The order is that of the events of one epoll descriptor, see epoll(7). A goroutine for each rank
// would not keep it.
type exitWatcher struct {
	epoll   int              // the epoll descriptor
	watched map[int]*os.File // descriptors of the processes (see sys.Pidfd), by rank
}

// newExitWatcher returns an exitWatcher, which the caller must close.
func newExitWatcher() (*exitWatcher, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}

	return &exitWatcher{epoll: epoll, watched: map[int]*os.File{}}, nil
}

// add adds a rank. Its process must not be reaped before waitForExits has reported the rank.
func (w *exitWatcher) add(number, pid int) error {
	process, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}

	w.watched[number] = process
	// The kernel returns the field Fd with each event. It can be any number, such as the rank's.
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

// forget removes a rank, so that its descriptor causes no more events. To close the descriptor is
// not sufficient, because a child process that was just forked may have a copy.
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
