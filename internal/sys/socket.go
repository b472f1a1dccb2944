package sys

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Peer identifies the process at the other end of a Unix socket.
type Peer struct {
	PID int // process ID
	UID int // ID of the process's user
}

// PeerOf returns the process that opened the other end of a connection.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("reading peer credentials: %w", err)
	}

	var cred *unix.Ucred
	var credErr error
	controlErr := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	err = errors.Join(controlErr, credErr)
	if err != nil {
		return Peer{}, fmt.Errorf("reading peer credentials: %w", err)
	}

	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// SendFile sends a message and, unless f is nil, its descriptor: see SCM_RIGHTS in unix(7). f stays
// open.
func SendFile(c *net.UnixConn, message []byte, f *os.File) error {
	var control []byte
	if f != nil {
		control = unix.UnixRights(int(f.Fd()))
	}

	if _, _, err := c.WriteMsgUnix(message, control, nil); err != nil {
		return fmt.Errorf("sending a descriptor: %w", err)
	}

	return nil
}

// ReceiveFile fills message and returns the file sent with it, or nil if there is none. It rejects
// shorter messages and several files. If this process has no free descriptor, it returns EMFILE.
func ReceiveFile(c *net.UnixConn, message []byte) (*os.File, error) {
	const (
		maxDescriptors  = 4 // more than one, so that parseFile can reject several
		descriptorBytes = 4
	)
	control := make([]byte, unix.CmsgSpace(maxDescriptors*descriptorBytes))
	messageBytes, controlBytes, flags, _, err := c.ReadMsgUnix(message, control)
	if err != nil {
		return nil, fmt.Errorf("receiving a descriptor: %w", err)
	}

	f, err := parseFile(control[:controlBytes])
	if err != nil {
		return nil, err
	}

	lacksDescriptors := flags&unix.MSG_CTRUNC != 0 // The kernel could not create all of them.
	if f == nil && lacksDescriptors {
		return nil, fmt.Errorf("receiving a descriptor: %w", unix.EMFILE)
	}

	if messageBytes != len(message) {
		if f != nil {
			f.Close()
		}

		return nil, fmt.Errorf("receiving a descriptor: the message has %d bytes, want %d",
			messageBytes, len(message))
	}

	return f, nil
}

// parseFile returns the file in the control messages, or nil if there is none. If there are
// several, parseFile closes them and returns an error.
func parseFile(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("parsing a control message: %w", err)
	}

	var fds []int
	for i := range messages {
		received, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not SCM_RIGHTS
		}

		fds = append(fds, received...)
	}

	switch len(fds) {
	case 0:
		return nil, nil
	case 1:
		unix.CloseOnExec(fds[0])
		return os.NewFile(uintptr(fds[0]), "received"), nil
	default:
		for _, fd := range fds {
			unix.Close(fd)
		}

		return nil, fmt.Errorf("receiving a descriptor: the message has %d descriptors, want 1",
			len(fds))
	}
}
