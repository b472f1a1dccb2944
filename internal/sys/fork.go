package sys

import (
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// inherited is indexed by file descriptor. For a socket that a forked child must close, it holds
// the socket's inode; for other descriptors, it holds 0. It is nil in programs that do not fork.
var inherited []uint64

// ShareSockets sets the table that CloseInForks fills and that the fork handler reads. It must be
// called before the first socket is opened.
func ShareSockets(table []uint64) { inherited = table }

// CloseInForks makes forked children close a socket. If a child kept the socket open, the process
// at the other end would not notice when this process exits. Values that are not sockets are
// ignored. The socket need not be removed from the table when it is closed, because inode numbers
// are not reused.
func CloseInForks(socket io.Closer) {
	c, ok := socket.(syscall.Conn)
	if !ok || inherited == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return // the socket has been closed
	}
	_ = raw.Control(func(fd uintptr) {
		var stat unix.Stat_t
		if fd < uintptr(len(inherited)) && unix.Fstat(int(fd), &stat) == nil {
			atomic.StoreUint64(&inherited[fd], stat.Ino)
		}
	})
}
