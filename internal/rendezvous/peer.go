package rendezvous

import (
	"fmt"
	"net"

	"symmem/internal/sys"
)

// checkPeer returns a PeerError unless the process at the other end of a Unix socket runs as user
// uid. It returns nil for connections of other kinds.
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
