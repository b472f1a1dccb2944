package sys

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func newPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		check(t, err)
		check(t, f.Close())
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

func TestPeerOfIdentifiesOtherEnd(t *testing.T) {
	a, _ := newPair(t)
	peer, err := PeerOf(a)
	check(t, err)
	if peer.PID != os.Getpid() || peer.UID != os.Getuid() {
		t.Errorf("PeerOf = %+v, want process %d of user %d", peer, os.Getpid(), os.Getuid())
	}
	check(t, a.Close())
	if _, err := PeerOf(a); err == nil {
		t.Error("PeerOf returned no error for a closed socket")
	}
}

func TestDescriptorsAccompanyMessages(t *testing.T) {
	a, b := newPair(t)
	message := make([]byte, 4)
	check(t, SendFile(a, []byte("none"), nil))
	f, err := ReceiveFile(b, message)
	check(t, err)
	if f != nil || string(message) != "none" {
		t.Errorf("got file %v and message %q, want no file and \"none\"", f, message)
	}
	check(t, SendFile(a, []byte("file"), newMemory(t, 12288)))
	f, err = ReceiveFile(b, message)
	check(t, err)
	if f == nil || string(message) != "file" {
		t.Fatalf("got file %v and message %q, want a file and \"file\"", f, message)
	}
	defer f.Close()
	if size, err := FileSize(f); err != nil || size != 12288 {
		t.Errorf("FileSize = %d, %v; want 12288", size, err)
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	check(t, err)
	if flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor is not close-on-exec")
	}
}

func countOpenFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}

func TestInvalidMessagesLeaveNoDescriptor(t *testing.T) {
	memory := newMemory(t, 4096)
	fd := int(memory.Fd())
	for name, c := range map[string]struct {
		text    string
		control []byte
	}{
		"two descriptors":                {"four", unix.UnixRights(fd, fd)},
		"too many descriptors":           {"four", unix.UnixRights(fd, fd, fd, fd, fd, fd, fd, fd)},
		"a short message":                {"two", unix.UnixRights(fd)},
		"no descriptor, a short message": {"two", nil},
	} {
		a, b := newPair(t)
		before := countOpenFiles(t)
		_, _, err := a.WriteMsgUnix([]byte(c.text), c.control, nil)
		check(t, err)
		if f, err := ReceiveFile(b, make([]byte, 4)); err == nil {
			t.Errorf("%s: ReceiveFile = %v, want an error", name, f)
		}
		if after := countOpenFiles(t); after != before {
			t.Errorf("%s: %d files are open afterwards, want %d", name, after, before)
		}
	}
}

func TestClosedConnectionCausesError(t *testing.T) {
	a, b := newPair(t)
	check(t, a.Close())
	if _, err := ReceiveFile(b, make([]byte, 4)); err == nil {
		t.Error("ReceiveFile after the other end was closed returned no error")
	}
	check(t, b.Close())
	if err := SendFile(b, []byte("four"), nil); err == nil {
		t.Error("SendFile on a closed socket returned no error")
	}
}

func TestReceiveFileWithoutFreeDescriptors(t *testing.T) {
	a, b := newPair(t)
	check(t, SendFile(a, []byte("file"), newMemory(t, 4096)))
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	exhausted := limit
	exhausted.Cur = 3
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &exhausted))
	_, err := ReceiveFile(b, make([]byte, 4))
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v, want EMFILE", err)
	}
}
