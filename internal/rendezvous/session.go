package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. It has two goroutines: run reads requests, and
// outbox.drain writes replies.
type session struct {
	server   *Server
	id       clientID
	conn     net.Conn
	isRemote bool    // The listener has accepted it. False for connections of Server.Client.
	outbox   *outbox // replies that have not been written

	// Guarded by server.mu:
	isOpen   bool      // the client has sent VALIDATE and the required token
	greeting *greeting // describes the client's rank; nil before the client has sent it
}

const (
	// authTimeout limits the time from accepting the connection until the session is open.
	authTimeout = 5 * time.Second
	// flushTimeout limits the time for writing the last replies.
	flushTimeout = time.Second
	// maxAuthBytes limits a request before the session is open. The longest is the check of the
	// token.
	maxAuthBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong, or an invalid query preceded it")
)

// run serves the connection until it is closed or the client violates the protocol.
func (s *session) run() {
	err := s.serve(newDecoder(s.conn, s.conn.RemoteAddr().String()))
	s.server.endSession(s)
	if sys.IsSilence(err) { // The client's machine no longer answers.
		s.server.endSilentSessions()
	}

	// The client may never read the last replies, so writing them needs a deadline. Server.Close
	// waits for the writes, but cannot interrupt them: it no longer knows this session.
	_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
	s.outbox.close()
}

// serve handles the client's requests and returns the error that ends the session.
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

		if err := s.server.handleRequest(s.id, r); err != nil {
			return err
		}

		s.outbox.awaitSpace()
	}
}

// receiveHandshake reads VALIDATE and, if the server requires one, the token.
func (s *session) receiveHandshake(d *decoder) error {
	r, err := d.readRequest(maxAuthBytes)
	if err != nil {
		return err
	}

	if r.query != queryValidate || r.nonce != protocolMagic {
		return errNoHandshake
	}

	if s.server.token == "" || !s.isRemote {
		return nil
	}

	return s.authenticate(d)
}

// authenticate waits for the token, which the client sends as a CHECK of a special key. Each PING
// before the token is answered, because it is part of the handshake.
func (s *session) authenticate(d *decoder) error {
	for {
		r, err := d.readRequest(maxAuthBytes)
		if err != nil {
			return err
		}

		switch {
		case s.server.token.matches(r):
			s.outbox.post([]byte{replyReady})
			return nil
		case r.query == queryCheck:
			s.outbox.post([]byte{replyNotReady}) // The token is wrong.
			return errUnauthenticated
		case r.query != queryPing:
			return errUnauthenticated
		}

		if err := s.server.handleRequest(s.id, r); err != nil {
			return err
		}

		s.outbox.awaitSpace()
	}
}
