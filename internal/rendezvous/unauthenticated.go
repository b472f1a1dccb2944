package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// Ranks authenticate within a millisecond, and they retry if their connection is closed.
const maxUnauthenticated = 128

func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}
	return unauthenticatedLimitFor(limit.Cur)
}

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

// OnAcceptError sets a function that the server calls, on another goroutine, with the first error
// of accepting connections that the user can fix. By default, the server logs a warning.
func (s *Server) OnAcceptError(handle func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAcceptError = handle
}

// reportAcceptError reports only errors that the user can fix.
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
