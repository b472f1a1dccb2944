package rendezvous

import (
	"errors"
	"fmt"
)

// Errors of a Store's connection. Each is wrapped with the address and the operation.
var (
	// ErrProtocol is matched by every ProtocolError.
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

// ProtocolError says what a peer sent that no TCPStore would.
type ProtocolError struct {
	// Addr is the address of the peer.
	Addr string
	// What says what came, and what was expected.
	What string
}

// Error names the address and what was wrong.
func (e *ProtocolError) Error() string {
	return fmt.Sprintf("%s does not speak the protocol of a TCPStore: %s", e.Addr, e.What)
}

// Is reports that every ProtocolError is an ErrProtocol.
func (e *ProtocolError) Is(target error) bool { return target == ErrProtocol }

// WaitError is a wait for keys that ended early.
type WaitError struct {
	// Keys are all keys that were waited for.
	Keys []string
	// Missing are those that were not there at the end. It is nil where the store could not
	// be asked any more.
	Missing []string
	// Err is the cause: of the context, or of the connection.
	Err error
}

// Error names at most eight keys, the missing ones where they are known.
func (e *WaitError) Error() string {
	const most = 8
	kind, keys := "keys", e.Keys
	if e.Missing != nil {
		kind, keys = "missing keys", e.Missing
	}
	more := ""
	if len(keys) > most {
		keys, more = keys[:most], fmt.Sprintf(" and %d more", len(keys)-most)
	}
	return fmt.Sprintf("waiting for %s %q%s: %v", kind, keys, more, e.Err)
}

// Unwrap gives the cause.
func (e *WaitError) Unwrap() error { return e.Err }

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
