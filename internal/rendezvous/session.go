package rendezvous

import (
	"errors"
	"net"
	"time"
)

// session is one connection of a Server. It is in one of three states: fresh, until VALIDATE has
// come; unproven, until the token has come (skipped where none is required); and open. Any
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
	// strangerWait is how long a connection may stay fresh or unproven.
	strangerWait = 5 * time.Second
	// farewellWait is how long the last replies of a session may take.
	farewellWait = time.Second
	// strangerBytes bounds the requests of such a connection: a token, and no more.
	strangerBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake = errors.New("the first query is not VALIDATE with the right number")
	errUnproven    = errors.New("a query before the token, or a wrong token")
)

// run serves requests until the client leaves or errs. Its error has no reader: closing the
// connection is all that the protocol has to say.
func (n *session) run() {
	_ = n.serve(newDecoder(n.conn, n.conn.RemoteAddr().String()))
	n.server.dismiss(n)
	// What is still in the outbox goes out, but not to a client that does not take it: Close
	// no longer knows this session and waits for its goroutines.
	_ = n.conn.SetWriteDeadline(time.Now().Add(farewellWait))
	n.out.close()
}

func (n *session) serve(d *decoder) error {
	if err := n.greet(d); err != nil {
		return err
	}
	if err := n.server.welcome(n); err != nil {
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

// greet takes a session from fresh to open.
func (n *session) greet(d *decoder) error {
	r, err := d.request(strangerBytes)
	if err != nil {
		return err
	}
	if r.query != queryValidate || r.nonce != magic {
		return errNoHandshake
	}
	if n.server.token == "" || !n.remote {
		return nil
	}
	return n.prove(d)
}

// prove waits for the token. A PING may come before, as it is part of the handshake.
func (n *session) prove(d *decoder) error {
	for {
		r, err := d.request(strangerBytes)
		switch {
		case err != nil:
			return err
		case n.server.token.shown(r):
			n.out.post([]byte{replyReady})
			return nil
		case r.query == queryCheck:
			n.out.post([]byte{replyNotReady})
			return errUnproven
		case r.query != queryPing:
			return errUnproven
		}
		if err := n.server.handle(n.id, r); err != nil {
			return err
		}
		n.out.room()
	}
}
