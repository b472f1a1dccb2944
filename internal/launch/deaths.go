package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// deaths reports ranks in the order in which they end. When a rank is lost, the other ranks fail
// within a millisecond. Only the order then identifies the lost rank. With one goroutine per rank
// the order would depend on the scheduler. The ready list of an epoll descriptor keeps the order of
// events. deaths is not safe for concurrent use.
type deaths struct {
	epoll int
	// watched maps the number of a rank to the pidfd of its process.
	watched map[int]*os.File
}

func newDeaths() (*deaths, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}
	return &deaths{epoll: epoll, watched: map[int]*os.File{}}, nil
}

// add watches a rank's process. The process must not be reaped before each has reported its end.
func (d *deaths) add(number, pid int) error {
	process, err := sys.Pidfd(pid)
	if err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}
	d.watched[number] = process
	event, fd := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(number)}, int(process.Fd())
	if err := syscall.EpollCtl(d.epoll, syscall.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("watching rank %d: %w", number, err)
	}
	return nil
}

// each calls died for every watched rank, in the order in which the ranks end.
func (d *deaths) each(died func(number int)) error {
	for len(d.watched) > 0 {
		var events [64]syscall.EpollEvent
		n, err := syscall.EpollWait(d.epoll, events[:], -1)
		if err != nil && err != syscall.EINTR {
			return fmt.Errorf("watching the ranks: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			d.forget(int(event.Fd))
			died(int(event.Fd))
		}
	}
	return nil
}

// forget stops watching a rank and closes its pidfd. Closing the pidfd alone would not suffice: if
// a child that was just forked holds a copy, the kernel keeps reporting the process.
func (d *deaths) forget(number int) {
	_ = syscall.EpollCtl(d.epoll, syscall.EPOLL_CTL_DEL, int(d.watched[number].Fd()), nil)
	_ = d.watched[number].Close()
	delete(d.watched, number)
}

// close closes all descriptors.
func (d *deaths) close() {
	for number := range d.watched {
		d.forget(number)
	}
	_ = syscall.Close(d.epoll)
}
