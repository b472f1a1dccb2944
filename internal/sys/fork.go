package sys

import (
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// inherited maps a file descriptor to the inode of the socket that a forked child must close, or to
// 0. It is nil in programs that do not fork.
var inherited []uint64

// ShareSockets sets the table for CloseInForks, which the handler of forks reads. It must be called
// before the first socket is opened.
func ShareSockets(table []uint64) { inherited = table }

// CloseInForks makes children of fork close a socket: while one held it, the process at the other
// end would not see that this process has ended. Other connections than sockets are left alone. The
// entry stays when the socket is closed, as the number of an inode does not come back.
func CloseInForks(socket io.Closer) {
	c, ok := socket.(syscall.Conn)
	if !ok || inherited == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		var stat unix.Stat_t
		if fd < uintptr(len(inherited)) && unix.Fstat(int(fd), &stat) == nil {
			atomic.StoreUint64(&inherited[fd], stat.Ino)
		}
	})
}
