package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. run reads requests on one goroutine, and outbox.drain
// writes replies on another.
type session struct {
	server   *Server
	id       clientID
	conn     net.Conn
	isRemote bool // accepted by the listener, and not a connection of Server.Client
	outbox   *outbox

	// Guarded by server.mu:
	isOpen   bool      // the client has sent VALIDATE and the required token
	greeting *greeting // sent by the client, or nil
}

const (
	authTimeout  = 5 * time.Second // from the connection until the session is open
	flushTimeout = time.Second     // for writing the last replies
	// maxAuthBytes limits a request before the session is open.
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
	// Writing the last replies needs a deadline: the client may never read them, and Server.Close,
	// which waits for this session, can no longer interrupt it.
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

// authenticate waits for the token. A PING may precede it, as part of the handshake.
func (s *session) authenticate(d *decoder) error {
	for {
		r, err := d.readRequest(maxAuthBytes)
		switch {
		case err != nil:
			return err
		case s.server.token.matches(r):
			s.outbox.post([]byte{replyReady})
			return nil
		case r.query == queryCheck:
			s.outbox.post([]byte{replyNotReady})
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
