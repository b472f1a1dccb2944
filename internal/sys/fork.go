package sys

import (
	"io"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketInodes is indexed by file descriptor. Forked children close the sockets with these inodes.
var socketInodes []uint64

// SetSocketTable sets the table that CloseInForks fills. It must precede the first socket.
func SetSocketTable(table []uint64) { socketInodes = table }

// CloseInForks makes forked children close a socket, so that the other end notices when this
// process exits. Closed sockets stay in the table, because inode numbers are not reused.
func CloseInForks(socket io.Closer) {
	c, ok := socket.(syscall.Conn)
	if !ok || socketInodes == nil {
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
