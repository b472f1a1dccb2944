package rendezvous

import (
	"errors"
	"net"
	"time"
)

// session is one connection of a Server. It is in one of three states: new, until VALIDATE has
// come; unauthenticated, until the token has come (skipped where none is required); and open. Any
// query that does not belong in its state ends it. Two goroutines serve it: run reads requests,
// the drain of its outbox writes replies.
type session struct {
	// Immutable.
	server *Server
	id     clientID
	conn   net.Conn
	remote bool
	out    *outbox
	// Guarded by server.mu. open is set in that state; greeting says for which rank the session
	// stands, if for any.
	open     bool
	greeting *greeting
}

const (
	// authTimeout is how long a remote connection may stay new or unauthenticated.
	authTimeout = 5 * time.Second
	// flushTimeout is how long the last replies of a session may take.
	flushTimeout = time.Second
	// maxAuthBytes bounds the requests of such a connection: a token, and no more.
	maxAuthBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the right number")
	errUnauthenticated = errors.New("a query before the token, or a wrong token")
)

// run serves requests until the client leaves or errs. Its error has no reader: closing the
// connection is all that the protocol has to say.
func (n *session) run() {
	_ = n.serve(newDecoder(n.conn, n.conn.RemoteAddr().String()))
	n.server.endSession(n)
	// The rest of the outbox is flushed, but with a limit for a client that does not read it: Close no
	// longer knows this session and waits for its goroutines.
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
		n.out.room()
	}
}

// greet takes a session from new to open.
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

// authenticate waits for the token. A PING may come before, as it is part of the handshake.
func (n *session) authenticate(d *decoder) error {
	for {
		r, err := d.request(maxAuthBytes)
		switch {
		case err != nil:
			return err
		case n.server.token.shown(r):
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
		n.out.room()
	}
}
