package rendezvous

import "errors"

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
