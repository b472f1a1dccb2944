package sys

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCloseInForks(t *testing.T) {
	l, err := net.Listen("unix", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	CloseInForks(l) // has no effect without a table
	table := make([]uint64, 1<<14)
	SetSocketTable(table)
	defer SetSocketTable(nil)
	CloseInForks(l)
	found := 0
	for fd, inode := range table {
		if inode == 0 {
			continue
		}

		found++
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil || stat.Ino != inode ||
			stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
			t.Errorf("descriptor %d has inode %d, mode %#o, error %v; want a socket with inode %d",
				fd, stat.Ino, stat.Mode, err, inode)
		}
	}

	if found != 1 {
		t.Errorf("the table has %d sockets, want 1", found)
	}
}
