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
	// authTimeout limits the handshake.
	authTimeout = 5 * time.Second
	// flushTimeout limits the time for writing the last replies.
	flushTimeout = time.Second
	// maxAuthBytes limits a request of the handshake. The longest sends the token.
	maxAuthBytes = len(tokenKeyPrefix) + maxTokenBytes + 64
)

var (
	errNoHandshake     = errors.New("the first query is not VALIDATE with the expected magic number")
	errUnauthenticated = errors.New("the token is wrong, or an invalid query preceded it")
)

// run serves the connection until it is closed or the client violates the protocol.
func (s *session) run() {
	err := s.serve(newDecoder(s.conn, s.conn.RemoteAddr().String()))
	s.server.endSession(s)
	isMachineSilent := sys.IsSilence(err)
	if isMachineSilent {
		s.server.endSilentSessions() // The client's machine may have other sessions.
	}

	// Server.Close waits for the last replies, even if the client does not read them.
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

	requiresToken := s.server.token != "" && s.isRemote
	if !requiresToken {
		return nil
	}

	return s.receiveToken(d)
}

// receiveToken reads and answers the token, which is a CHECK of a special key. Before the token, a
// client may send PINGs, whose replies confirm VALIDATE.
func (s *session) receiveToken(d *decoder) error {
	for {
		r, err := d.readRequest(maxAuthBytes)
		if err != nil {
			return err
		}

		switch r.query {
		case queryPing:
			err = s.server.handleRequest(s.id, r)
			if err != nil {
				return err
			}

			s.outbox.awaitSpace()
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
