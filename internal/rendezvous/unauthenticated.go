package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// maxUnauthenticated bounds the number of connections that have not authenticated yet. Ranks
// authenticate within a millisecond, and they retry if their connection is closed.
const maxUnauthenticated = 128

func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}
	return unauthenticatedLimitFor(limit.Cur)
}

// unauthenticatedLimitFor returns a quarter of the descriptors that a process may open, but at
// least 4 and at most maxUnauthenticated.
func unauthenticatedLimitFor(descriptors uint64) int {
	return int(min(maxUnauthenticated, max(4, descriptors/4)))
}

// addUnauthenticated adds a session to s.unauthenticated. If there are too many, it closes the
// oldest one. The caller must hold s.mu.
func (s *Server) addUnauthenticated(sess *session) {
	s.unauthenticated = append(s.unauthenticated, sess)
	if len(s.unauthenticated) > unauthenticatedLimit() {
		_ = s.unauthenticated[0].conn.Close()
		s.unauthenticated = s.unauthenticated[1:]
	}
}

func (s *Server) removeUnauthenticated(sess *session) {
	isSame := func(other *session) bool { return other == sess }
	s.unauthenticated = slices.DeleteFunc(s.unauthenticated, isSame)
}

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

// OnAcceptError sets a function that the server calls, on one of its goroutines, the first time
// that it cannot accept a connection. By default, the server logs a warning.
func (s *Server) OnAcceptError(handle func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAcceptError = handle
}

// reportAcceptError reports errors of Accept that the user can fix and ignores all others.
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
