package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// A session serves one connection of a client. It is unauthenticated until the end of its
// handshake, in which the client sends the token. Ranks do this within a millisecond, but another
// program may connect and send nothing. If a server has too many unauthenticated sessions, it
// closes the oldest, so that they do not use up the file descriptors. A rank whose connection is
// closed tries again.
//
// A session is remote if the server's listener accepted its connection. The other sessions are
// those of clients that the server itself has created.

// maxUnauthenticated limits the number of unauthenticated sessions.
const maxUnauthenticated = 128

// unauthenticatedLimit returns the limit of unauthenticated sessions for this process.
func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}

	return unauthenticatedLimitFor(limit.Cur)
}

// unauthenticatedLimitFor returns the limit for a process that may open descriptorLimit files. It
// is a quarter of descriptorLimit, so that the other descriptors remain for ranks, but at least 4
// and at most maxUnauthenticated.
func unauthenticatedLimitFor(descriptorLimit uint64) int {
	return int(min(maxUnauthenticated, max(4, descriptorLimit/4)))
}

// addUnauthenticated adds a session. If there are too many unauthenticated sessions afterwards, it
// closes the connection of the oldest. The caller must hold s.mu.
func (s *Server) addUnauthenticated(sess *session) {
	s.unauthenticated = append(s.unauthenticated, sess)
	if len(s.unauthenticated) > unauthenticatedLimit() {
		oldest := s.unauthenticated[0]
		_ = oldest.conn.Close() // ends the session
		s.unauthenticated = s.unauthenticated[1:]
	}
}

// removeUnauthenticated removes a session whose client has sent the token, or which has ended. It
// has no effect if addUnauthenticated has removed the session. The caller must hold s.mu.
func (s *Server) removeUnauthenticated(sess *session) {
	isRemoved := func(other *session) bool { return other == sess }
	s.unauthenticated = slices.DeleteFunc(s.unauthenticated, isRemoved)
}

// openSession is called after a session's handshake, which includes the token. It removes the
// deadline for the handshake. From here on, Drain waits for the client if the session is remote.
func (s *Server) openSession(sess *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return ErrClosed
	}

	sess.isOpen = true
	if sess.isRemote {
		s.removeUnauthenticated(sess)
		s.remoteCount++
	}

	noDeadline := time.Time{}
	return sess.conn.SetReadDeadline(noDeadline)
}

// OnAcceptError sets a function that the server calls if it cannot accept a connection and the user
// can fix this. The server calls it at most once, on another goroutine. By default, the server
// logs a warning.
func (s *Server) OnAcceptError(handle func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAcceptError = handle
}

// reportAcceptError calls onAcceptError with the first error that the user can fix: too many open
// files in this process or on the machine. It ignores other errors.
func (s *Server) reportAcceptError(err error) {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return
	}

	s.mu.Lock()
	handle := s.onAcceptError
	s.onAcceptError = nil
	s.mu.Unlock()
	if handle != nil { // This is the first error.
		handle(err)
	}
}

// warnAcceptError is the default of OnAcceptError.
func warnAcceptError(err error) {
	slog.Warn("symmem: the store cannot accept the connection of a rank: raise the limit of open "+
		"files (ulimit -n) of the process that serves it", "error", err)
}
