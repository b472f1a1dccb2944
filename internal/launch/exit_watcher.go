package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// exitWatcher reports ranks in the order of their exits, which goroutines would not keep. When a
// rank is lost, others fail within a millisecond, so only the order identifies it.
type exitWatcher struct {
	epoll   int
	watched map[int]*os.File // pidfds by rank
}

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
	event, fd := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(number)}, int(process.Fd())
	if err := syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}
	return nil
}

// waitForExits returns after the last exit.
func (w *exitWatcher) waitForExits(report func(rank int)) error {
	for len(w.watched) > 0 {
		var events [64]syscall.EpollEvent
		n, err := syscall.EpollWait(w.epoll, events[:], -1)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("watching the ranks: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			w.forget(int(event.Fd))
			report(int(event.Fd))
		}
	}
	return nil
}

// Closing a pidfd does not remove it from the epoll set, because a child that was just forked may
// have a copy.
func (w *exitWatcher) forget(number int) {
	_ = syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_DEL, int(w.watched[number].Fd()), nil)
	_ = w.watched[number].Close()
	delete(w.watched, number)
}

func (w *exitWatcher) close() {
	for number := range w.watched {
		w.forget(number)
	}
	_ = syscall.Close(w.epoll)
}
