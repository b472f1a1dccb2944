package rendezvous

import (
	"fmt"
	"net"

	"symmem/internal/sys"
)

// checkPeer returns a PeerError if the process at the other end of a Unix socket does not run as
// user uid. It returns nil for other kinds of connections.
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
