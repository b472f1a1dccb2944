package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. It is new until it receives VALIDATE. Then it is
// unauthenticated until it receives the token, if the server requires one. Then it is open. run
// reads requests on one goroutine, and out.drain writes replies on another.
type session struct {
	server *Server
	id     clientID
	conn   net.Conn
	remote bool // whether the listener accepted the connection
	out    *outbox

	open     bool      // whether the state is open; guarded by server.mu
	greeting *greeting // identifies the session's rank, or nil; guarded by server.mu
}

const (
	authTimeout  = 5 * time.Second
	flushTimeout = time.Second
	// maxAuthBytes bounds each request until the session is open.
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
	// The client may never read. After endSession, Server.Close waits for this session but cannot
	// interrupt it. Flushing the outbox therefore needs a deadline.
	_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
	s.out.close()
}

func (s *session) serve(d *decoder) error {
	if err := s.greet(d); err != nil {
		return err
	}
	if err := s.server.openSession(s); err != nil {
		return err
	}
	for {
		r, err := d.request(maxRequestBytes)
		if err != nil {
			return err
		}
		if err := s.server.handle(s.id, r); err != nil {
			return err
		}
		s.out.awaitSpace()
	}
}

func (s *session) greet(d *decoder) error {
	r, err := d.request(maxAuthBytes)
	if err != nil {
		return err
	}
	if r.query != queryValidate || r.nonce != magic {
		return errNoHandshake
	}
	if s.server.token == "" || !s.remote {
		return nil
	}
	return s.authenticate(d)
}

// authenticate waits for the token. A PING may precede it, as part of the handshake.
func (s *session) authenticate(d *decoder) error {
	for {
		r, err := d.request(maxAuthBytes)
		switch {
		case err != nil:
			return err
		case s.server.token.matches(r):
			s.out.post([]byte{replyReady})
			return nil
		case r.query == queryCheck:
			s.out.post([]byte{replyNotReady})
			return errUnauthenticated
		case r.query != queryPing:
			return errUnauthenticated
		}
		if err := s.server.handle(s.id, r); err != nil {
			return err
		}
		s.out.awaitSpace()
	}
}
