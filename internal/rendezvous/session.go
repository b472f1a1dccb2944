package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. It has two goroutines: run reads requests, and
// outbox.drain writes replies.
//
// A client begins with a handshake: it sends VALIDATE, and the token if the server requires one.
type session struct {
	server   *Server
	id       clientID
	conn     net.Conn
	isRemote bool    // false if the client is in the server's process
	outbox   *outbox // replies that have not been written

	// Guarded by server.mu:
	isOpen   bool      // the handshake is complete
	greeting *greeting // identifies the client's rank; nil before the client has sent it
}

const (
	// handshakeTimeout limits the time for the handshake.
	handshakeTimeout = 5 * time.Second
	// flushTimeout limits the time for writing the last replies.
	flushTimeout = time.Second
	// maxHandshakeBytes limits a request of the handshake. It has room for the longest token.
	maxHandshakeBytes = len(tokenKeyPrefix) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong or missing")
)

// run serves the connection until it is closed or the client violates the protocol.
func (s *session) run() {
	err := s.serve(newDecoder(s.conn, s.conn.RemoteAddr().String()))
	s.server.endSession(s)
	isMachineSilent := sys.IsSilence(err)
	if isMachineSilent {
		s.server.endSilentSessions() // other sessions of the same machine
	}

	// Otherwise, a client that reads nothing would block Server.Close.
	_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
	s.outbox.close()
}

// serve handles requests until an error ends the session.
func (s *session) serve(d *decoder) error {
	if err := s.receiveHandshake(d); err != nil {
		return err
	}

	if err := s.server.openSession(s); err != nil {
		return err
	}

	for {
		r, err := d.readRequest(maxRequestBytes)
		if err != nil {
			return err
		}

		if err := s.handle(r); err != nil {
			return err
		}
	}
}

func (s *session) receiveHandshake(d *decoder) error {
	r, err := d.readRequest(maxHandshakeBytes)
	if err != nil {
		return err
	}

	if r.query != queryValidate || r.nonce != protocolMagic {
		return errNoHandshake
	}

	requiresToken := s.server.token != "" && s.isRemote
	if !requiresToken {
		return nil
	}

	return s.receiveToken(d)
}

// receiveToken reads and answers a CHECK whose key contains the token. Before it, the client may
// send PINGs to confirm VALIDATE.
func (s *session) receiveToken(d *decoder) error {
	for {
		r, err := d.readRequest(maxHandshakeBytes)
		if err != nil {
			return err
		}

		switch r.query {
		case queryPing:
			if err := s.handle(r); err != nil {
				return err
			}
		case queryCheck:
			if s.server.token.matches(r) {
				s.outbox.post([]byte{replyReady})
				return nil
			}

			s.outbox.post([]byte{replyNotReady})
			return errUnauthenticated
		default:
			return errUnauthenticated
		}
	}
}

// handle executes a request. It returns when the outbox has space for another reply.
func (s *session) handle(r *request) error {
	if err := s.server.handleRequest(s.id, r); err != nil {
		return err
	}

	s.outbox.awaitSpace()
	return nil
}
