package rendezvous

import (
	"errors"
	"fmt"
)

// Errors of a Store's connection. Each is wrapped with the address and the operation.
var (
	// ErrProtocol means that the other end sent what no TCPStore would.
	ErrProtocol = errors.New("not the protocol of a TCPStore")
	// ErrToken means that the server refused our token, or requires one and we have none.
	ErrToken = errors.New("token refused")
	// ErrLost means that the server went away: its process ended, or closed the store.
	ErrLost = errors.New("store lost")
	// ErrClosed means that this side closed the store.
	ErrClosed = errors.New("store closed")
	// ErrTooLarge means that a key, a value or a number of keys is over the limits of the
	// protocol. Nothing was sent.
	ErrTooLarge = errors.New("over the store's limits")
)

// PeerError is a Unix socket whose other end belongs to another user.
type PeerError struct {
	// Addr is the address of the socket.
	Addr string
	// UID is the user of the other end, Want is ours.
	UID, Want uint32
}

// Error names both users.
func (e *PeerError) Error() string {
	return fmt.Sprintf("the other end of %s belongs to user %d, not to user %d",
		e.Addr, e.UID, e.Want)
}
