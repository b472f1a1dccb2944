package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// maxUnauthenticated is the maximum number of connections that have not sent the token yet. Ranks
// authenticate within a millisecond, and retry if their connection is closed.
const maxUnauthenticated = 128

// unauthenticatedLimit returns the limit of unauthenticated connections for this process.
func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}
	return unauthenticatedLimitFor(limit.Cur)
}

// unauthenticatedLimitFor returns the limit for a process that may open the given number of
// descriptors: a quarter of it, but at least 4 and at most maxUnauthenticated.
func unauthenticatedLimitFor(descriptors uint64) int {
	return int(min(maxUnauthenticated, max(4, descriptors/4)))
}

// addUnauthenticated adds a session and closes the oldest unauthenticated one if the limit is
// exceeded. The caller must hold s.mu.
func (s *Server) addUnauthenticated(sess *session) {
	s.unauthenticated = append(s.unauthenticated, sess)
	if len(s.unauthenticated) > unauthenticatedLimit() {
		_ = s.unauthenticated[0].conn.Close()
		s.unauthenticated = s.unauthenticated[1:]
	}
}

// removeUnauthenticated removes a session that is open or has ended. The caller must hold s.mu.
func (s *Server) removeUnauthenticated(sess *session) {
	isSame := func(other *session) bool { return other == sess }
	s.unauthenticated = slices.DeleteFunc(s.unauthenticated, isSame)
}

// openSession opens a session after the handshake, and removes the deadline for the handshake.
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
	return sess.conn.SetReadDeadline(time.Time{})
}

// OnAcceptError sets a function that the server calls, on another goroutine, with the first error
// of accepting connections that the user can fix. By default, the server logs a warning.
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
	if handle != nil {
		handle(err)
	}
}

func warnAcceptError(err error) {
	slog.Warn("symmem: the store cannot accept the connection of a rank: raise the limit of open "+
		"files (ulimit -n) of the process that serves it", "error", err)
}
