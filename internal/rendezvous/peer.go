package rendezvous

import (
	"fmt"
	"net"

	"symmem/internal/sys"
)

// checkPeer returns a PeerError if the process at the other end of a Unix socket does not run as
// the user uid. It does not check other connections.
func checkPeer(conn net.Conn, addr string, uid uint32) error {
	unixConn, isUnix := conn.(*net.UnixConn)
	if !isUnix {
		return nil
	}

	peer, err := sys.PeerOf(unixConn)
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}

	if peer.UID != int(uid) {
		return &PeerError{Addr: addr, UID: uint32(peer.UID), Want: uid}
	}

	return nil
}
