package rendezvous

import (
	"errors"
	"net"
	"time"

	"symmem/internal/sys"
)

// session serves one connection of a Server. It is new until it receives VALIDATE. Then it is
// unauthenticated until it receives the token, if one is required. Then it is open. A query that is
// not allowed in the current state ends the session. Two goroutines serve a session: run reads
// requests, and out.drain writes replies.
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
	// authTimeout limits how long a remote connection may remain unauthenticated.
	authTimeout = 5 * time.Second
	// flushTimeout limits the time for writing a session's last replies.
	flushTimeout = time.Second
	// maxAuthBytes limits requests before the session is open. The largest one has the token.
	maxAuthBytes = len(tokenKey) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong, or an invalid query preceded it")
)

// run serves requests until the client disconnects or sends an invalid request. The protocol has no
// error replies, so run drops the error. It closes the connection, and those of other clients whose
// machines do not answer.
func (s *session) run() {
	err := s.serve(newDecoder(s.conn, s.conn.RemoteAddr().String()))
	s.server.endSession(s)
	if sys.IsSilence(err) {
		s.server.endSilentSessions()
	}
	// The flush of the outbox needs a deadline, because the client may not read. Server.Close
	// cannot interrupt the flush: endSession has removed the session, and Close waits for this
	// goroutine.
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

// greet reads the handshake of a new session, with the token if one is required.
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
