package sys

import (
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketInodes contains the inode number of each socket, indexed by its file descriptor. Forked
// children close the sockets with these numbers. It is nil in programs that do not fork.
var socketInodes []uint64

// SetSocketTable sets the table that CloseInForks fills. Call it before the first socket is opened.
func SetSocketTable(table []uint64) { socketInodes = table }

// CloseInForks makes forked children close a socket, so that the other end notices when this
// process exits. A socket that was closed stays in the table. This does no harm, because inode
// numbers are not reused.
func CloseInForks(socket io.Closer) {
	c, hasDescriptor := socket.(syscall.Conn)
	if !hasDescriptor || socketInodes == nil {
		return
	}

	raw, err := c.SyscallConn()
	if err != nil {
		return
	}

	_ = raw.Control(func(fd uintptr) {
		var stat unix.Stat_t
		if fd < uintptr(len(socketInodes)) && unix.Fstat(int(fd), &stat) == nil {
			atomic.StoreUint64(&socketInodes[fd], stat.Ino)
		}
	})
}
