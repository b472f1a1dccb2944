package rendezvous

import (
	"fmt"
	"net"

	"symmem/internal/sys"
)

// checkPeer returns a PeerError if conn is a Unix socket of a process that does not run as user
// uid.
func checkPeer(conn net.Conn, addr string, uid uint32) error {
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	switch peer, err := sys.PeerOf(unix); {
	case err != nil:
		return fmt.Errorf("%s: %w", addr, err)
	case peer.UID != int(uid):
		return &PeerError{Addr: addr, UID: uint32(peer.UID), Want: uid}
	}
	return nil
}
