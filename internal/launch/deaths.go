package launch

import (
	"fmt"
	"os"
	"syscall"

	"symmem/internal/sys"
)

// deaths tells in which order ranks end. It matters: when one rank is lost the others fail within
// a millisecond, and the one that was lost must be named. A goroutine for each rank would report
// them in the order in which the scheduler wakes it; the kernel's list of descriptors that have
// become ready keeps the order of the events. It is used by one goroutine at a time.
type deaths struct {
	epoll int
	// watched maps the number of a rank to the descriptor of its process.
	watched map[int]*os.File
}

func newDeaths() (*deaths, error) {
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the ranks: %w", err)
	}
	return &deaths{epoll: epoll, watched: map[int]*os.File{}}, nil
}

// add watches the process of a rank, which must not be reaped before its death was told. Such a
// descriptor becomes ready when the process has ended.
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

// each calls died for every rank that was added, as they end.
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

// forget ends the watch of a rank and closes its descriptor. To close it is not enough: a child
// that was just forked may hold it, too, and the kernel then goes on to report it.
func (d *deaths) forget(number int) {
	_ = syscall.EpollCtl(d.epoll, syscall.EPOLL_CTL_DEL, int(d.watched[number].Fd()), nil)
	_ = d.watched[number].Close()
	delete(d.watched, number)
}

// close gives all descriptors back.
func (d *deaths) close() {
	for number := range d.watched {
		d.forget(number)
	}
	_ = syscall.Close(d.epoll)
}
