package rendezvous

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"time"
)

// mostStrangers is how many connections may be about to prove themselves at once. Ranks take a
// millisecond for that, and try again if they were turned away.
const mostStrangers = 128

// strangersAllowed is mostStrangers, or less where the process may open few descriptors.
func strangersAllowed() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return mostStrangers
	}
	return strangersOf(limit.Cur)
}

// strangersOf is how many strangers a process takes that may open so many descriptors: a quarter
// is theirs.
func strangersOf(descriptors uint64) int { return int(min(mostStrangers, max(4, descriptors/4))) }

// suspect takes in a connection that has not proven itself, and closes the oldest of those that
// have not if there are too many. s.mu is held.
func (s *Server) suspect(n *session) {
	s.strangers = append(s.strangers, n)
	if len(s.strangers) > strangersAllowed() {
		// Its session ends by that.
		_ = s.strangers[0].conn.Close()
		s.strangers = s.strangers[1:]
	}
}

// trust strikes a session off the list of strangers. s.mu is held.
func (s *Server) trust(n *session) {
	s.strangers = slices.DeleteFunc(s.strangers, func(o *session) bool { return o == n })
}

// welcome takes in that a session is open: from here on it may be silent.
func (s *Server) welcome(n *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	n.open = true
	if n.remote {
		s.trust(n)
		s.remote++
	}
	return n.conn.SetReadDeadline(time.Time{})
}

// OnTrouble sets what is told, once, why the server cannot accept a connection, instead of a
// warning in the log. It is called on a goroutine of the server.
func (s *Server) OnTrouble(tell func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = tell
}

// complain tells why no connection can be accepted, if that needs somebody to act.
func (s *Server) complain(err error) {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return
	}
	s.mu.Lock()
	tell := s.trouble
	s.trouble = nil
	s.mu.Unlock()
	if tell != nil {
		tell(err)
	}
}

func warn(err error) {
	slog.Warn("symmem: the store cannot accept the connection of a rank: raise the limit of open "+
		"files (ulimit -n) of the process that serves it", "error", err)
}
