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
	PID int
	UID int
}

// PeerOf returns the process that opened the other end of a connection.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("reading peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return Peer{}, fmt.Errorf("reading peer credentials: %w", err)
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// SendFile sends a message and, unless f is nil, the descriptor of f with it. The caller must
// still close f.
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

// ReceiveFile receives a message of exactly len(message) bytes and the file whose descriptor was
// sent with it. The file is nil if the message has no descriptor. It is an error if the message
// has several descriptors. The error is EMFILE if this process has no free descriptor.
func ReceiveFile(c *net.UnixConn, message []byte) (*os.File, error) {
	const maxDescriptors, descriptorBytes = 4, 4 // more than one, to detect several descriptors
	control := make([]byte, unix.CmsgSpace(maxDescriptors*descriptorBytes))
	n, controlBytes, flags, _, err := c.ReadMsgUnix(message, control)
	if err != nil {
		return nil, fmt.Errorf("receiving a descriptor: %w", err)
	}
	f, err := parseFile(control[:controlBytes])
	if err != nil {
		return nil, err
	}
	if f == nil && flags&unix.MSG_CTRUNC != 0 {
		return nil, fmt.Errorf("receiving a descriptor: %w", unix.EMFILE)
	}
	if n != len(message) {
		if f != nil {
			f.Close()
		}
		return nil, fmt.Errorf("receiving a descriptor: the message has %d bytes, want %d",
			n, len(message))
	}
	return f, nil
}

// parseFile returns the file for the descriptor in control data, or nil if there is none. It
// closes the descriptors if there are several.
func parseFile(control []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("parsing a control message: %w", err)
	}
	var fds []int
	for i := range messages {
		received, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of control message
		}
		fds = append(fds, received...)
	}
	if len(fds) == 1 {
		unix.CloseOnExec(fds[0])
		return os.NewFile(uintptr(fds[0]), "received"), nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	if len(fds) > 1 {
		return nil, fmt.Errorf("receiving a descriptor: the message has %d descriptors, want 1",
			len(fds))
	}
	return nil, nil
}
