package live

import (
	"net"
	"os"
	"sync/atomic"

	"symmem/internal/sys"
)

// limiter is a net.Listener that closes connections above a limit and, on Unix sockets, from other
// users. Forked children close all connections.
type limiter struct {
	net.Listener
	limit int64
	open  atomic.Int64
}

// Accept returns the next connection within the limit.
func (l *limiter) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}

		sys.CloseInForks(c)
		if l.open.Add(1) <= l.limit && isAdmitted(c) {
			return &limited{Conn: c, limiter: l}, nil
		}

		l.open.Add(-1)
		_ = c.Close()
	}
}

// isAdmitted reports whether the peer on a Unix socket is a process of this user or of root.
func isAdmitted(c net.Conn) bool {
	local, ok := c.(*net.UnixConn)
	if !ok {
		return true
	}

	peer, err := sys.PeerOf(local)
	return err == nil && (peer.UID == os.Geteuid() || peer.UID == 0)
}

// limited is an open connection that a limiter counts.
type limited struct {
	net.Conn
	limiter *limiter
	closed  atomic.Bool
}

func (l *limited) Close() error {
	if !l.closed.Swap(true) {
		l.limiter.open.Add(-1)
	}

	return l.Conn.Close()
}
