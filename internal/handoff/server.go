package handoff

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"symmem/internal/sys"
)

const (
	// requestTimeout limits the time from the first byte of a request to the end of its response.
	// Only a stopped or faulty client pauses within a request.
	requestTimeout = 10 * time.Second
	// acceptRetryPause keeps the server from spinning while Accept fails.
	acceptRetryPause = 10 * time.Millisecond
)

// Server sends exported files to other processes that know its token. A connection can be used for
// any number of requests. Server is safe for concurrent use.
type Server struct {
	token      Token
	listener   *net.UnixListener
	goroutines sync.WaitGroup

	mu          sync.Mutex       // guards the fields below
	exports     map[Key]*os.File // closed by the callers of Export
	connections map[*net.UnixConn]struct{}
	isClosed    bool
}

// Listen starts a server on a Unix socket with a new random name. The name is in the abstract
// namespace, so that a killed process leaves no file.
func Listen(token Token) (*Server, error) {
	var name [16]byte
	rand.Read(name[:]) // never fails
	address := &net.UnixAddr{Net: "unix", Name: "@symmem-" + hex.EncodeToString(name[:])}
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		return nil, fmt.Errorf("opening the hand-off socket: %w", err)
	}

	sys.CloseInForks(listener) // Children must not keep the socket open after this process.
	s := &Server{
		token:       token,
		listener:    listener,
		exports:     map[Key]*os.File{},
		connections: map[*net.UnixConn]struct{}{},
	}
	s.goroutines.Go(s.acceptConnections)
	return s, nil
}

// Address returns the address for Dial.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Export lets peers fetch a file under a key. The caller must keep the file open until it has
// called Withdraw.
func (s *Server) Export(key Key, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exports[key] = f
}

// Withdraw ends the export of a file. Peers that have fetched the file can still use it.
func (s *Server) Withdraw(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.exports, key)
}

// Close stops the server and waits for its goroutines.
func (s *Server) Close() error {
	s.mu.Lock()
	s.isClosed = true // addConnection refuses new connections.
	for conn := range s.connections {
		conn.Close()
	}

	s.mu.Unlock()
	err := s.listener.Close()
	s.goroutines.Wait()
	return err
}

// acceptConnections serves each connection on its own goroutine, until the listener is closed.
func (s *Server) acceptConnections() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}

		if err != nil {
			// No descriptor is free, or the client has disconnected.
			time.Sleep(acceptRetryPause)
			continue
		}

		sys.CloseInForks(conn)
		if s.addConnection(conn) {
			s.goroutines.Go(func() { s.handleRequests(conn) })
		}
	}
}

// addConnection registers a connection for Close. If the peer belongs to another user or the server
// is closed, it closes the connection and returns false.
func (s *Server) addConnection(conn *net.UnixConn) bool {
	peer, err := sys.PeerOf(conn)
	isSameUser := err == nil && peer.UID == os.Getuid()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isSameUser || s.isClosed {
		conn.Close()
		return false
	}

	s.connections[conn] = struct{}{}
	return true
}

// handleRequests serves one connection until it ends or a request is invalid.
func (s *Server) handleRequests(conn *net.UnixConn) {
	defer s.removeConnection(conn)
	request := make([]byte, requestBytes)
	for {
		err := readRequest(conn, request)
		if err != nil || !s.respond(conn, request) {
			return
		}
	}
}

// readRequest waits for a request and reads it. Its deadline also applies to the response.
func readRequest(conn *net.UnixConn, request []byte) error {
	noDeadline := time.Time{} // Hours may pass between requests.
	conn.SetReadDeadline(noDeadline)
	if _, err := io.ReadFull(conn, request[:1]); err != nil {
		return err
	}

	conn.SetDeadline(time.Now().Add(requestTimeout))
	_, err := io.ReadFull(conn, request[1:])
	return err
}

// respond answers a request. If it returns false, the caller must close the connection.
func (s *Server) respond(conn *net.UnixConn, request []byte) (canContinue bool) {
	token, key, err := decodeRequest(request)
	if err != nil {
		return false
	}

	isAuthentic := subtle.ConstantTimeCompare(token[:], s.token[:]) == 1
	if !isAuthentic {
		_ = sys.SendFile(conn, encodeResponse(statusRefused), nil) // the connection ends anyway
		return false
	}

	// The lock blocks Withdraw while the file is sent. After Withdraw, the file may be closed.
	s.mu.Lock()
	defer s.mu.Unlock()
	f, isExported := s.exports[key]
	if isExported {
		err = sys.SendFile(conn, encodeResponse(statusFound), f)
	} else {
		err = sys.SendFile(conn, encodeResponse(statusUnknown), nil)
	}

	return err == nil
}

func (s *Server) removeConnection(conn *net.UnixConn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, conn)
}
