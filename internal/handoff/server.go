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

// Suppose that rank 0 exports a file under a key, and that rank 1 runs on the same machine. Rank 1
// connects to the Server of rank 0, and sends a request with the key and the token. The Server
// checks that the token is its own, and sends a descriptor of the file. Rank 1 keeps the connection
// for later requests. When rank 0 withdraws the file, rank 1 can still use its descriptor.

const (
	// requestTimeout limits the time from the first byte of a request to the end of its response.
	// Clients send whole requests, so only a stopped or faulty client reaches the limit.
	requestTimeout = 10 * time.Second
	// acceptRetryPause is the time between a failed attempt to accept a connection and the next. It
	// keeps the server from using all of a core while no descriptor is free.
	acceptRetryPause = 10 * time.Millisecond
)

// Server sends exported files to other processes that know its token. It is safe for concurrent
// use.
type Server struct {
	token      Token
	listener   *net.UnixListener
	goroutines sync.WaitGroup

	mu          sync.Mutex             // guards the fields below
	exports     map[Key]*os.File       // the files belong to the callers of Export
	connections map[*net.UnixConn]bool // the open connections; all values are true
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

	sys.CloseInForks(listener) // so that the socket ends with this process
	s := &Server{
		token:       token,
		listener:    listener,
		exports:     map[Key]*os.File{},
		connections: map[*net.UnixConn]bool{},
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
	s.isClosed = true // so that addConnection closes later connections
	for conn := range s.connections {
		conn.Close()
	}

	s.mu.Unlock()
	err := s.listener.Close()
	s.goroutines.Wait()
	return err
}

// acceptConnections accepts connections until the listener is closed. It starts a goroutine for
// each.
func (s *Server) acceptConnections() {
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}

		if err != nil {
			// The error is temporary: no descriptor is free, or the client has disconnected.
			time.Sleep(acceptRetryPause)
			continue
		}

		sys.CloseInForks(conn)
		if s.addConnection(conn) {
			s.goroutines.Go(func() { s.handleRequests(conn) })
		}
	}
}

// addConnection registers a connection so that Close can close it. If the peer belongs to another
// user or the server is closed, addConnection closes the connection and returns false.
func (s *Server) addConnection(conn *net.UnixConn) bool {
	peer, err := sys.PeerOf(conn)
	isSameUser := err == nil && peer.UID == os.Getuid()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isSameUser || s.isClosed {
		conn.Close()
		return false
	}

	s.connections[conn] = true
	return true
}

// handleRequests answers the requests of one connection until the connection ends or a request is
// invalid.
func (s *Server) handleRequests(conn *net.UnixConn) {
	defer s.removeConnection(conn)
	request := make([]byte, requestBytes)
	for {
		// There is no deadline for the first byte of a request: hours may pass between requests.
		noDeadline := time.Time{}
		conn.SetReadDeadline(noDeadline)
		if _, err := io.ReadFull(conn, request[:1]); err != nil {
			return
		}

		conn.SetDeadline(time.Now().Add(requestTimeout))
		if _, err := io.ReadFull(conn, request[1:]); err != nil {
			return
		}

		if !s.respond(conn, request) {
			return
		}
	}
}

// respond answers a request, and reports whether the connection can be used for more requests.
func (s *Server) respond(conn *net.UnixConn, request []byte) bool {
	token, key, err := decodeRequest(request)
	if err != nil {
		return false
	}

	isAuthentic := subtle.ConstantTimeCompare(token[:], s.token[:]) == 1
	if !isAuthentic {
		_ = sys.SendFile(conn, encodeResponse(statusRefused), nil) // the connection ends anyway
		return false
	}

	// Hold the lock until the file is sent, so that Withdraw waits. After Withdraw, the caller of
	// Export may close the file. By then, the kernel must have a reference to the file.
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

// removeConnection closes a connection, and removes it from those that Close closes.
func (s *Server) removeConnection(conn *net.UnixConn) {
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, conn)
}
