package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// maxUnauthenticated limits the remote sessions without a completed handshake, so that programs
// that connect and send nothing cannot use up the server's file descriptors. Beyond the limit, the
// server closes the oldest session. A rank then reconnects.
const maxUnauthenticated = 128

// unauthenticatedLimit returns maxUnauthenticated, or less if this process may open few files.
func unauthenticatedLimit() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxUnauthenticated
	}

	return unauthenticatedLimitFor(limit.Cur)
}

// unauthenticatedLimitFor returns a quarter of descriptorLimit, so that most descriptors remain for
// ranks. The result is between 4 and maxUnauthenticated.
func unauthenticatedLimitFor(descriptorLimit uint64) int {
	return int(min(max(descriptorLimit/4, 4), maxUnauthenticated))
}

// addUnauthenticated adds a new remote session, and closes the oldest one if there are too many.
// The caller must hold s.mu.
func (s *Server) addUnauthenticated(sess *session) {
	s.unauthenticated = append(s.unauthenticated, sess)
	if len(s.unauthenticated) > unauthenticatedLimit() {
		oldest := s.unauthenticated[0]
		_ = oldest.conn.Close() // ends the session
		s.unauthenticated = s.unauthenticated[1:]
	}
}

// removeUnauthenticated removes a session that has completed the handshake or ended. It has no
// effect on other sessions. The caller must hold s.mu.
func (s *Server) removeUnauthenticated(sess *session) {
	if i := slices.Index(s.unauthenticated, sess); i >= 0 {
		s.unauthenticated = slices.Delete(s.unauthenticated, i, i+1)
	}
}

// openSession records that a client has completed the handshake, and removes the deadline of its
// connection.
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

// OnAcceptError sets the function that handles the first error about too many open files. A
// goroutine of the server calls it. By default, the server logs a warning.
func (s *Server) OnAcceptError(handle func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAcceptError = handle
}

// reportAcceptError calls onAcceptError for the first error about too many open files. It ignores
// other errors, because the user cannot fix them.
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
	if handle != nil {
		handle(err)
	}
}

// warnAcceptError is the default value of Server.onAcceptError.
func warnAcceptError(err error) {
	slog.Warn("symmem: the store cannot accept the connection of a rank: raise the limit of open "+
		"files (ulimit -n) of the process that serves it", "error", err)
}
