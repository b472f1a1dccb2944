package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. It is open after VALIDATE and the required token. run
// reads requests on one goroutine, and outbox.drain writes replies on another.
type session struct {
	server   *Server
	id       clientID
	conn     net.Conn
	isRemote bool // accepted by the listener
	outbox   *outbox

	isOpen   bool      // guarded by server.mu
	greeting *greeting // sent by the client, or nil; guarded by server.mu
}

const (
	authTimeout  = 5 * time.Second
	flushTimeout = time.Second
	// maxAuthBytes limits a request before the session is open.
	maxAuthBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong, or an invalid query preceded it")
)

func (s *session) run() {
	err := s.serve(newDecoder(s.conn, s.conn.RemoteAddr().String()))
	s.server.endSession(s)
	if sys.IsSilence(err) {
		s.server.endSilentSessions()
	}
	// Writing the last replies needs a deadline: the client may never read them, and Server.Close,
	// which waits for this session, can no longer interrupt it.
	_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
	s.outbox.close()
}

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
