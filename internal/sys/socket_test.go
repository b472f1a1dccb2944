package sys

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Two processes on one machine are connected by a Unix socket. One calls SendFile with a message,
// such as "file", and an open file. The other calls ReceiveFile, which returns the message and a
// new descriptor of the same file. In these tests, both ends are in this process.

// newPair returns the two ends of a connected Unix socket.
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

// PeerOf returns the process and the user at the other end, here those of the test.
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

// messageBytes is the length of the messages that the tests receive.
const messageBytes = 4

// TestDescriptorsAccompanyMessages sends a message without and a message with a descriptor. The
// received descriptor must refer to the same file, and must not be inherited by child processes.
func TestDescriptorsAccompanyMessages(t *testing.T) {
	a, b := newPair(t)
	message := make([]byte, messageBytes)
	check(t, SendFile(a, []byte("none"), nil))
	f, err := ReceiveFile(b, message)
	check(t, err)
	if f != nil || string(message) != "none" {
		t.Errorf("got file %v and message %q, want no file and \"none\"", f, message)
	}

	const fileBytes = 12288
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

// countOpenFiles returns the number of open descriptors of this process. It also counts the one
// with which it reads them.
func countOpenFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(entries)
}

// TestInvalidMessagesLeaveNoDescriptor sends messages that ReceiveFile must reject: those that are
// too short, or have more than one descriptor. It must close the descriptors that it received.
func TestInvalidMessagesLeaveNoDescriptor(t *testing.T) {
	memory := newMemory(t, 4096)
	fd := int(memory.Fd())
	const whole, short = "four", "two" // The first one has messageBytes.
	for name, c := range map[string]struct {
		text        string
		descriptors []byte // encoded for the kernel
	}{
		"two descriptors": {
			text: whole, descriptors: unix.UnixRights(fd, fd),
		},
		"eight descriptors": {
			text: whole, descriptors: unix.UnixRights(fd, fd, fd, fd, fd, fd, fd, fd),
		},
		"a short message": {
			text: short, descriptors: unix.UnixRights(fd),
		},
		"no descriptor, a short message": {
			text: short, descriptors: nil,
		},
	} {
		a, b := newPair(t)
		before := countOpenFiles(t)
		_, _, err := a.WriteMsgUnix([]byte(c.text), c.descriptors, nil)
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

// TestReceiveFileWithoutFreeDescriptors lowers the limit of descriptors while this process receives
// one. The kernel then drops the descriptor, and ReceiveFile must report the cause.
func TestReceiveFileWithoutFreeDescriptors(t *testing.T) {
	a, b := newPair(t)
	check(t, SendFile(a, []byte("file"), newMemory(t, 4096)))
	var limit unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	lowered := limit
	lowered.Cur = 3 // for the standard streams; other files that are already open stay usable
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lowered))
	_, err := ReceiveFile(b, make([]byte, messageBytes))
	check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("ReceiveFile = %v, want EMFILE", err)
	}
}
