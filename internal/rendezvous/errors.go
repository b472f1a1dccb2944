package rendezvous

import (
	"errors"
	"fmt"
)

var (
	// ErrProtocol means that the other side does not speak the TCPStore protocol.
	ErrProtocol = errors.New("not the protocol of a TCPStore")
	// ErrToken means that the server refused the token or requires one.
	ErrToken = errors.New("token refused")
	// ErrLost means that the server's process has exited or closed the store.
	ErrLost = errors.New("store lost")
	// ErrClosed means that this process closed the store.
	ErrClosed = errors.New("store closed")
	// ErrTooLarge means that a request exceeds a limit of the protocol and was not sent.
	ErrTooLarge = errors.New("exceeds a limit of the store")
)

// PeerError means that the process at the other end of a Unix socket belongs to another user.
type PeerError struct {
	Addr string
	UID  uint32 // of the other process
	Want uint32 // of this process
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("the other end of %s belongs to user %d, not to user %d",
		e.Addr, e.UID, e.Want)
}
