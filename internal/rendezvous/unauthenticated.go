package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// maxUnauthenticated limits the sessions (served connections) that have not completed the
// handshake. Beyond the limit, the server closes the oldest, so that programs that connect and send
// nothing cannot use up its file descriptors. A rank completes the handshake within a millisecond,
// and reconnects if its session is closed.
const maxUnauthenticated = 128

// unauthenticatedLimit reduces maxUnauthenticated if this process may open few files.
func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}

	return unauthenticatedLimitFor(limit.Cur)
}

// unauthenticatedLimitFor leaves at least three quarters of the descriptors for ranks, unless
// descriptorLimit is below 16.
func unauthenticatedLimitFor(descriptorLimit uint64) int {
	return int(min(maxUnauthenticated, max(4, descriptorLimit/4)))
}

// addUnauthenticated adds a session, and closes the oldest if there are too many. The caller must
// hold s.mu.
func (s *Server) addUnauthenticated(sess *session) {
	s.unauthenticated = append(s.unauthenticated, sess)
	if len(s.unauthenticated) > unauthenticatedLimit() {
		oldest := s.unauthenticated[0]
		_ = oldest.conn.Close() // ends the session
		s.unauthenticated = s.unauthenticated[1:]
	}
}

// removeUnauthenticated removes a session that is authenticated or has ended, if it is still
// listed. The caller must hold s.mu.
func (s *Server) removeUnauthenticated(sess *session) {
	isSession := func(other *session) bool { return other == sess }
	s.unauthenticated = slices.DeleteFunc(s.unauthenticated, isSession)
}

// openSession marks the handshake of a session as complete and removes its deadline. From now on,
// Drain waits for the client, unless the client is in this process.
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

// OnAcceptError sets a function that the server calls at most once, on another goroutine, if too
// many open files keep it from accepting a connection. By default, the server logs a warning.
func (s *Server) OnAcceptError(handle func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAcceptError = handle
}

// reportAcceptError calls onAcceptError for the first error about too many open files. It ignores
// other errors, which the user cannot fix.
func (s *Server) reportAcceptError(err error) {
	isProcessLimit := errors.Is(err, syscall.EMFILE)
	isMachineLimit := errors.Is(err, syscall.ENFILE)
	if !isProcessLimit && !isMachineLimit {
		return
	}

	s.mu.Lock()
	handle := s.onAcceptError
	s.onAcceptError = nil
	s.mu.Unlock()
	isFirst := handle != nil
	if isFirst {
		handle(err)
	}
}

// warnAcceptError is the default of OnAcceptError.
func warnAcceptError(err error) {
	slog.Warn("symmem: the store cannot accept the connection of a rank: raise the limit of open "+
		"files (ulimit -n) of the process that serves it", "error", err)
}
