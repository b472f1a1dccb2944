package rendezvous

import (
	"fmt"
	"net"
	"syscall"
)

// checkPeer returns a PeerError unless the process at the other end of a Unix socket runs as
// user uid. On the client's side that is the process that listens. Other connections pass.
func checkPeer(conn net.Conn, addr string, uid uint32) error {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return fmt.Errorf("reading the peer of %s: %w", addr, err)
	}
	var peer *syscall.Ucred
	control := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if control != nil {
		err = control
	}
	if err != nil {
		return fmt.Errorf("reading the peer of %s: %w", addr, err)
	}
	if peer.Uid != uid {
		return &PeerError{Addr: addr, UID: peer.Uid, Want: uid}
	}
	return nil
}
