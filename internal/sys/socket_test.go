package sys

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// newPair returns two connected Unix sockets.
func newPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f) // duplicates the descriptor
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
		t.Error("PeerOf of a closed socket = nil error, want an error")
	}
}

const messageBytes = 4 // length of the messages "none", "file" and "four"

func TestDescriptorsAccompanyMessages(t *testing.T) {
	a, b := newPair(t)
	message := make([]byte, messageBytes)
	check(t, SendFile(a, []byte("none"), nil))
	f, err := ReceiveFile(b, message)
	check(t, err)
	if f != nil || string(message) != "none" {
		t.Errorf("got file %v and message %q, want no file and \"none\"", f, message)
	}

	const fileBytes = 12288 // arbitrary, identifies the file
	check(t, SendFile(a, []byte("file"), newMemory(t, fileBytes)))
	f, err = ReceiveFile(b, message)
	check(t, err)
	if f == nil || string(message) != "file" {
		t.Fatalf("got file %v and message %q, want a file and \"file\"", f, message)
	}

	defer f.Close()
	if size, err := FileSize(f); err != nil || size != fileBytes {
		t.Errorf("FileSize of the received file = %d, %v; want %d", size, err, fileBytes)
	}

	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	check(t, err)
	isInherited := flags&unix.FD_CLOEXEC == 0
	if isInherited {
		t.Error("child processes inherit the received descriptor, want it to be close-on-exec")
	}
}

// countOpenFiles counts the descriptors of this process, and the one that reads /proc/self/fd.
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
		message string
		control []byte // encoded descriptors
	}{
		"two descriptors": {
			message: "four", control: unix.UnixRights(fd, fd),
		},
		"eight descriptors": {
			message: "four", control: unix.UnixRights(fd, fd, fd, fd, fd, fd, fd, fd),
		},
		"a short message": {
			message: "two", control: unix.UnixRights(fd),
		},
		"no descriptor, a short message": {
			message: "two", control: nil,
		},
	} {
		a, b := newPair(t)
		before := countOpenFiles(t)
		_, _, err := a.WriteMsgUnix([]byte(c.message), c.control, nil)
		check(t, err)
		if f, err := ReceiveFile(b, make([]byte, messageBytes)); err == nil {
			t.Errorf("%s: ReceiveFile = %v, want an error", name, f)
		}

		if after := countOpenFiles(t); after != before {
			t.Errorf("%s: %d descriptors are open afterwards, want %d", name, after, before)
		}
	}
}

func TestClosedConnectionCausesError(t *testing.T) {
	a, b := newPair(t)
	check(t, a.Close())
	if _, err := ReceiveFile(b, make([]byte, messageBytes)); err == nil {
		t.Error("ReceiveFile after the other end was closed = nil error, want an error")
	}

	check(t, b.Close())
	if err := SendFile(b, []byte("four"), nil); err == nil {
		t.Error("SendFile on a closed socket = nil, want an error")
	}
}

func TestReceiveFileWithoutFreeDescriptors(t *testing.T) {
	a, b := newPair(t)
	check(t, SendFile(a, []byte("file"), newMemory(t, 4096)))
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	noFree := limit
	noFree.Cur = 3 // leaves only the descriptors of the standard streams, which are in use
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &noFree))
	_, err := ReceiveFile(b, make([]byte, messageBytes))
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) // restores the limit
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("ReceiveFile = %v, want EMFILE", err)
	}
}
