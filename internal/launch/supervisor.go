package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor is a state machine that decides which signals the ranks get. It has these phases:
//
//	running      Some ranks are running, and none has failed.
//	grace        A rank has failed, and the others may still report.
//	announced    After announceDelay in grace, once a message has listed the running ranks.
//	terminating  SIGTERM has been sent, after the grace period or because the launcher got SIGTERM.
//	killing      SIGKILL has been sent, after a wait, on a second SIGINT or on cancellation.
//	done         All ranks have exited.
//
// Other signals are forwarded and change no phase.
type supervisor struct {
	phase    phase
	grace    time.Duration
	termWait time.Duration
	// killAfter is the time from a received SIGTERM to SIGKILL. If it is not positive, SIGKILL is
	// not sent.
	killAfter time.Duration

	remaining      int            // number of running ranks
	interrupts     int            // number of received SIGINTs
	externalSignal syscall.Signal // first signal that the launcher received
	exits          []Exit         // by rank
	hasExited      []bool         // by rank
	first          int            // rank that failed first, or -1
}

// announceDelay is the time from a failure to the message that lists the running ranks.
const announceDelay = 2 * time.Second

type phase int

const (
	running phase = iota
	grace
	announced
	terminating
	killing
	done
)

// order is an instruction to Run. Run sends signal to all ranks unless it is 0, and prints message
// unless it is empty. If wait is positive, Run calls expired after that time.
type order struct {
	signal  syscall.Signal
	wait    time.Duration
	message string
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		grace: s.Grace, termWait: s.TermWait, killAfter: s.KillAfter, remaining: s.Ranks,
		exits:     make([]Exit, s.Ranks),
		hasExited: make([]bool, s.Ranks), first: -1,
	}
}

func (s *supervisor) exited(e Exit) order {
	s.exits[e.Rank], s.hasExited[e.Rank] = e, true
	s.remaining--
	failed := e.Code != 0
	if failed && (s.first < 0 || e.exitIndex < s.exits[s.first].exitIndex) {
		s.first = e.Rank
	}
	switch {
	case s.remaining == 0:
		s.phase = done
	case failed && s.phase == running:
		s.phase = grace
		if s.grace > announceDelay {
			return order{wait: announceDelay}
		}
		return s.after(s.grace)
	}
	return order{}
}

func (s *supervisor) announce() order {
	s.phase = announced
	rest := s.grace - announceDelay
	return order{wait: rest, message: fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.first], rest, max(s.termWait, 0))}
}

func (s *supervisor) expired() order {
	switch s.phase {
	case grace, announced:
		if s.phase == grace && s.grace > announceDelay {
			return s.announce()
		}
		s.phase = terminating
		o := s.after(s.termWait)
		if s.phase == terminating {
			o.signal, o.message = syscall.SIGTERM, "sending SIGTERM to the remaining ranks"
		}
		return o
	case terminating:
		o := s.kill()
		o.message = "sending SIGKILL to the remaining ranks"
		return o
	case running, killing, done:
	}
	return order{}
}

// after returns an order to wait. If wait is not positive, after returns the next order.
func (s *supervisor) after(wait time.Duration) order {
	if wait <= 0 {
		return s.expired()
	}
	return order{wait: wait}
}

// signaled handles a signal that the launcher received. SIGPIPE means that the reader of the
// launcher's output is gone. The ranks do not notice that, so they get SIGTERM.
func (s *supervisor) signaled(received syscall.Signal) order {
	if s.externalSignal == 0 {
		s.externalSignal = received
	}
	if received == syscall.SIGPIPE {
		o := s.signaled(syscall.SIGTERM)
		o.message = "the reader of the output was closed: sending SIGTERM to the ranks"
		return o
	}
	if received == syscall.SIGINT {
		s.interrupts++
	}
	if s.interrupts > 1 {
		return s.kill()
	}
	if received == syscall.SIGTERM && s.killAfter > 0 && s.phase < terminating {
		s.phase = terminating
		return order{signal: received, wait: s.killAfter}
	}
	return order{signal: received}
}

func (s *supervisor) kill() order {
	if s.phase == done {
		return order{}
	}
	s.phase = killing
	return order{signal: syscall.SIGKILL}
}

func (s *supervisor) result() Result {
	r := Result{Exits: s.exits, First: s.first, Signal: s.externalSignal}
	if s.first >= 0 {
		r.Code = s.exits[s.first].Code
	}
	return r
}
