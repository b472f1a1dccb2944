package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// A client begins with a handshake: it sends the request VALIDATE, and then the token, if the
// server requires one. The session is then open, and the client can send other requests. PyTorch's
// protocol has no request for a token. So the client sends a CHECK of the key
// "symmem/token/SECRET".

// session serves one connection of a Server. It has two goroutines: run reads requests, and
// outbox.drain writes replies.
type session struct {
	server   *Server
	id       clientID
	conn     net.Conn
	isRemote bool    // whether the listener accepted conn; false for a client from Server.Client
	outbox   *outbox // replies that have not been written

	// Guarded by server.mu:
	isOpen   bool      // whether the handshake is complete
	greeting *greeting // describes the client's rank; nil before the client has sent it
}

const (
	// authTimeout limits the time from accepting the connection until the session is open.
	authTimeout = 5 * time.Second
	// flushTimeout limits the time for writing the last replies.
	flushTimeout = time.Second
	// maxAuthBytes limits a request of the handshake. The CHECK of the token is the longest. Apart
	// from the key, it has fewer than 64 bytes.
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
	isMachineSilent := sys.IsSilence(err) // whether the client's machine no longer answers
	if isMachineSilent {
		s.server.endSilentSessions() // ends the other sessions of this machine, too
	}

	// The client may not read the last replies, so writing them needs a deadline. Server.Close waits
	// for the writes, but cannot interrupt them: after endSession, it does not know this session.
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

	requiresToken := s.server.token != "" && s.isRemote
	if !requiresToken {
		return nil
	}

	return s.receiveToken(d)
}

// receiveToken reads the token and answers it. It also answers each PING before the token, which a
// client sends to check that the server has received VALIDATE.
func (s *session) receiveToken(d *decoder) error {
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
