package rendezvous

import (
	"errors"
	"net"
	"time"
)

// session is one connection of a Server. It is in one of three states: new, until VALIDATE is
// received; unauthenticated, until the token is received (skipped if none is required); and open.
// Any query that is not allowed in the current state ends the session. Two goroutines serve it: run
// reads requests, and out.drain writes replies.
type session struct {
	// Immutable.
	server *Server
	id     clientID
	conn   net.Conn
	remote bool
	out    *outbox
	// Guarded by server.mu. open reports that the session is in the open state; greeting identifies
	// the session's rank, or is nil.
	open     bool
	greeting *greeting
}

const (
	// authTimeout limits the time that a remote connection may be new or unauthenticated.
	authTimeout = 5 * time.Second
	// flushTimeout limits the time for writing a session's last replies.
	flushTimeout = time.Second
	// maxAuthBytes limits a request before the open state: the largest is the one with the token.
	maxAuthBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong, or an invalid query preceded it")
)

// run serves requests until the client disconnects or sends an invalid one. The error is dropped:
// the protocol reports errors only by closing the connection.
func (n *session) run() {
	_ = n.serve(newDecoder(n.conn, n.conn.RemoteAddr().String()))
	n.server.endSession(n)
	// Limit the flush of the outbox, as the client may not read it: endSession removed the session, so
	// Server.Close cannot interrupt it but still waits for its goroutines.
	_ = n.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
	n.out.close()
}

func (n *session) serve(d *decoder) error {
	if err := n.greet(d); err != nil {
		return err
	}
	if err := n.server.openSession(n); err != nil {
		return err
	}
	for {
		r, err := d.request(maxRequestBytes)
		if err != nil {
			return err
		}
		if err := n.server.handle(n.id, r); err != nil {
			return err
		}
		n.out.awaitRoom()
	}
}

// greet reads the handshake of a new session, with the token if one is required.
func (n *session) greet(d *decoder) error {
	r, err := d.request(maxAuthBytes)
	if err != nil {
		return err
	}
	if r.query != queryValidate || r.nonce != magic {
		return errNoHandshake
	}
	if n.server.token == "" || !n.remote {
		return nil
	}
	return n.authenticate(d)
}

// authenticate waits for the token. A PING may precede it, as it is part of the handshake.
func (n *session) authenticate(d *decoder) error {
	for {
		r, err := d.request(maxAuthBytes)
		switch {
		case err != nil:
			return err
		case n.server.token.isIn(r):
			n.out.post([]byte{replyReady})
			return nil
		case r.query == queryCheck:
			n.out.post([]byte{replyNotReady})
			return errUnauthenticated
		case r.query != queryPing:
			return errUnauthenticated
		}
		if err := n.server.handle(n.id, r); err != nil {
			return err
		}
		n.out.awaitRoom()
	}
}
