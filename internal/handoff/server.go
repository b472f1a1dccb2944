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

// requestTimeout limits the time from the first byte of a request to the last byte of its response.
const requestTimeout = 10 * time.Second

// acceptPause is the pause after a failed attempt to accept a connection.
const acceptPause = 10 * time.Millisecond

// Server sends exported files to other processes. It is safe for concurrent use.
type Server struct {
	token    Token
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu      sync.Mutex
	exports map[Key]*os.File       // guarded by mu; the exporters own the files
	open    map[*net.UnixConn]bool // guarded by mu
	closed  bool                   // guarded by mu
}

// Listen starts a server on a new abstract socket.
func Listen(token Token) (*Server, error) {
	var name [16]byte
	rand.Read(name[:])
	address := &net.UnixAddr{Net: "unix", Name: "@symmem-" + hex.EncodeToString(name[:])}
	listener, err := net.ListenUnix("unix", address)
	if err != nil {
		return nil, fmt.Errorf("opening the hand-off socket: %w", err)
	}
	sys.CloseInForks(listener)
	s := &Server{
		token: token, listener: listener,
		exports: map[Key]*os.File{}, open: map[*net.UnixConn]bool{},
	}
	s.serving.Go(s.accept)
	return s, nil
}

// Address returns the address that peers pass to Dial.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Export offers a file under a key until Withdraw is called. The caller must keep the file open
// until then.
func (s *Server) Export(key Key, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exports[key] = f
}

// Withdraw stops exporting the file under a key. Peers that have already fetched the file keep it.
func (s *Server) Withdraw(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.exports, key)
}

// Close stops the server and waits for its goroutines.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.serving.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The error is temporary: either no descriptor is free or the client has disconnected.
			time.Sleep(acceptPause)
			continue
		}
		sys.CloseInForks(c)
		if s.register(c) {
			s.serving.Go(func() { s.serve(c) })
		}
	}
}

func (s *Server) register(c *net.UnixConn) bool {
	peer, err := sys.PeerOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || peer.UID != os.Getuid() || s.closed {
		c.Close()
		return false
	}
	s.open[c] = true
	return true
}

func (s *Server) serve(c *net.UnixConn) {
	defer s.forget(c)
	request := make([]byte, requestSize)
	for {
		// Between requests there is no deadline, because a peer may keep its connection open for
		// hours.
		c.SetReadDeadline(time.Time{})
		if _, err := io.ReadFull(c, request[:1]); err != nil {
			return
		}
		c.SetDeadline(time.Now().Add(requestTimeout))
		if _, err := io.ReadFull(c, request[1:]); err != nil {
			return
		}
		if !s.answer(c, request) {
			return
		}
	}
}

func (s *Server) answer(c *net.UnixConn, request []byte) bool {
	token, key, err := decodeRequest(request)
	if err != nil {
		return false
	}
	if subtle.ConstantTimeCompare(token[:], s.token[:]) != 1 {
		_ = sys.SendFile(c, encodeResponse(statusRefused), nil)
		return false
	}
	// Hold the lock while sending. When Withdraw returns, the kernel then has its own reference to
	// the file, and the caller of Withdraw may close the file.
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.exports[key]
	if !ok {
		return sys.SendFile(c, encodeResponse(statusUnknown), nil) == nil
	}
	return sys.SendFile(c, encodeResponse(statusFound), f) == nil
}

func (s *Server) forget(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}
