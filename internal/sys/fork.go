package sys

import (
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketInodes is indexed by file descriptor. It holds the inode of each socket that a forked child
// must close. It is nil in programs that do not fork.
var socketInodes []uint64

// SetSocketTable sets the table that CloseInForks fills and that the fork handler reads. It must be
// called before the first socket is opened.
func SetSocketTable(table []uint64) { socketInodes = table }

// CloseInForks makes forked children close a socket. If a child kept the socket open, the process
// at the other end would not notice when this process exits. The socket stays in the table after it
// is closed, because inode numbers are not reused.
func CloseInForks(socket io.Closer) {
	c, ok := socket.(syscall.Conn)
	if !ok || socketInodes == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return // the socket has been closed
	}
	_ = raw.Control(func(fd uintptr) {
		var stat unix.Stat_t
		if fd < uintptr(len(socketInodes)) && unix.Fstat(int(fd), &stat) == nil {
			atomic.StoreUint64(&socketInodes[fd], stat.Ino)
		}
	})
}
