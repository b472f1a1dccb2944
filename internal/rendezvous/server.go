package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"symmem/internal/sys"
)

// Server serves a store, which is a table of keys and values for the ranks of a job. The protocol
// is that of PyTorch's TCPStore. A Server is safe for concurrent use.
//
// Each connection has a session. A session is remote if a listener has accepted its connection, and
// open if its handshake is complete.
type Server struct {
	// These fields do not change.
	listener   net.Listener   // nil if only this process can reach the server
	address    string         // see Address
	token      Token          // required from remote clients unless it is ""
	uid        uint32         // user whose processes may connect to a Unix socket
	goroutines sync.WaitGroup // all goroutines of the server

	mu sync.Mutex
	// mu guards all fields below.
	table           *table // the stored keys and values
	sessions        map[clientID]*session
	claims          map[jobRank]clientID // session of the process that runs the rank
	lastID          clientID             // ID of the newest session
	remoteCount     int                  // number of open remote sessions
	endCount        int                  // number of calls of recordEnd
	unauthenticated []*session           // remote sessions that are not open yet, oldest first
	remoteEnded     chan struct{}        // closed and replaced whenever remoteCount decreases
	isClosing       bool                 // announceClosing was called
	isClosed        bool                 // Close was called
	// onAcceptError handles the first error of Accept that the user can fix. It is nil afterwards.
	onAcceptError    func(error)
	handshakeTimeout time.Duration // the constant handshakeTimeout; tests set a shorter one
}

// Listen serves a new store at address, which is "host:port" or "unix:@name". On TCP, the server
// requires a token. On a Unix socket, it refuses clients of other users. The caller must close the
// server.
func Listen(address string, token Token) (*Server, error) {
	network, addr, err := splitAddress(address)
	if err != nil {
		return nil, err
	}

	if err := token.validate(); err != nil {
		return nil, err
	}

	if network == "tcp" && token == "" {
		return nil, fmt.Errorf("serving a store at %s: a server on TCP requires a token, because "+
			"otherwise any process that reaches the port could join", address)
	}

	listener, err := net.Listen(network, addr)
	if err != nil {
		return nil, fmt.Errorf("serving a store: %w", err)
	}

	sys.CloseInForks(listener)
	s := newServer(address, token)
	s.listener = listener
	if network == "tcp" {
		s.address = listener.Addr().String()
	}

	s.goroutines.Go(s.acceptClients)
	return s, nil
}

// newServer returns a server without a listener. Only Client can connect to it.
func newServer(address string, token Token) *Server {
	return &Server{
		address:          address,
		token:            token,
		uid:              uint32(os.Geteuid()),
		table:            newTable(),
		sessions:         map[clientID]*session{},
		claims:           map[jobRank]clientID{},
		remoteEnded:      make(chan struct{}),
		onAcceptError:    warnAcceptError,
		handshakeTimeout: handshakeTimeout,
	}
}

// Address returns the server's address, with the port that Listen has chosen.
func (s *Server) Address() string { return s.address }

// Client returns a client in this process. It needs no token, and Drain does not wait for it.
func (s *Server) Client() *Client {
	dial := func(ctx context.Context) (*link, error) {
		clientEnd, serverEnd := net.Pipe()
		const isRemote = false
		if !s.startSession(serverEnd, isRemote) {
			_ = clientEnd.Close() // Closing a pipe never fails.
			_ = serverEnd.Close()
			return nil, ErrLost
		}

		return handshake(ctx, clientEnd, Endpoint{Address: s.address})
	}
	return newClient(s.address, dial)
}

// acceptClients accepts connections until the listener is closed.
func (s *Server) acceptClients() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}

		if err != nil {
			// No descriptor is free, or the client has disconnected.
			s.reportAcceptError(err)
			time.Sleep(acceptPause)
			continue
		}

		sys.CloseInForks(conn)
		// An error concerns only this client, which notices that its connection is closed.
		err = checkPeer(conn, s.address, s.uid)
		if err == nil {
			err = sys.DetectSilence(conn)
		}

		const isRemote = true
		isServed := err == nil && s.startSession(conn, isRemote)
		if !isServed {
			conn.Close()
		}
	}
}

// acceptPause is the pause after an error of Accept, which may persist. It keeps acceptClients from
// using a whole CPU core.
const acceptPause = 10 * time.Millisecond

// startSession starts the goroutines that serve a connection and finally close it. If the server is
// closed, it returns false and leaves the connection open.
func (s *Server) startSession(conn net.Conn, isRemote bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return false
	}

	s.lastID++
	sess := &session{server: s, id: s.lastID, conn: conn, isRemote: isRemote, outbox: newOutbox()}
	s.sessions[sess.id] = sess
	if isRemote {
		_ = conn.SetReadDeadline(time.Now().Add(s.handshakeTimeout))
		s.addUnauthenticated(sess)
	}

	s.goroutines.Go(sess.run)
	s.goroutines.Go(func() {
		sess.outbox.drain(conn) // returns when the session has ended
		conn.Close()
	})
	return true
}

// endSession removes a session whose client has disconnected or violated the protocol.
func (s *Server) endSession(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess.id)
	s.table.cancelWait(sess.id)
	s.removeUnauthenticated(sess)
	s.recordSessionEnd(sess)
	if sess.isRemote && sess.isOpen {
		s.remoteCount--
		close(s.remoteEnded)
		s.remoteEnded = make(chan struct{})
	}
}

// endSilentSessions closes all connections to machines that do not answer. Otherwise, each of a
// machine's connections would have to time out separately.
func (s *Server) endSilentSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		if sys.SilenceOf(sess.conn) == sys.Silent {
			_ = sess.conn.Close()
		}
	}
}

// handleRequest handles a request of a client. An error ends the client's session.
func (s *Server) handleRequest(from clientID, r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	wasGreeting := s.handleGreeting(from, r)
	if wasGreeting {
		return nil
	}

	return s.applyRequest(from, r)
}

// applyRequest applies a request to the table and sends the replies. Some replies may go to other
// clients that waited for a key. The caller must hold s.mu.
func (s *Server) applyRequest(from clientID, r *request) error {
	replies, err := s.table.apply(from, r)
	for _, reply := range replies {
		if sess := s.sessions[reply.to]; sess != nil {
			sess.outbox.post(reply.bytes)
		}
	}

	return err
}

// Drain stops listening and waits until all open remote sessions have ended. Meanwhile, the server
// serves them. Drain returns an error if ctx is done first.
func (s *Server) Drain(ctx context.Context) error {
	if s.listener != nil {
		s.listener.Close()
	}

	for {
		remoteCount, ended := s.remoteSessions()
		if remoteCount == 0 {
			return nil
		}

		select {
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %d clients to leave: %w", remoteCount,
				context.Cause(ctx))
		}
	}
}

// remoteSessions returns the number of open remote sessions, and a channel that is closed when the
// number decreases.
func (s *Server) remoteSessions() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remoteCount, s.remoteEnded
}

// Close closes all connections and waits for the server's goroutines. Later calls have no effect.
func (s *Server) Close() error {
	var err error
	if s.listener != nil {
		err = s.listener.Close()
	}

	s.mu.Lock()
	wasClosed := s.isClosed
	s.isClosed = true
	for _, sess := range s.sessions {
		// End a read or write that is blocked, and then allow the last replies to be written.
		_ = sess.conn.SetDeadline(pastDeadline)
		_ = sess.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
		if s.isClosing && sess.isRemote && sess.greeting != nil {
			sess.outbox.post([]byte(closingMark))
		}

		sess.outbox.close()
	}

	s.mu.Unlock()
	s.goroutines.Wait()
	hasDrained := errors.Is(err, net.ErrClosed) // Drain has closed the listener.
	if wasClosed || hasDrained {
		return nil
	}

	return err
}
