package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor is a state machine that decides which signals the ranks get. It has these phases:
//
//	running      Some ranks are running, and none has failed.
//	grace        A rank has failed. The others have time to print what they know about it.
//	announced    The grace period continues, and a message has listed the running ranks.
//	terminating  SIGTERM has been sent, after the grace period or because the launcher got SIGTERM.
//	killing      SIGKILL has been sent.
//	done         All ranks have exited.
//
// Other signals are forwarded and do not change the phase.
type supervisor struct {
	phase       phase
	gracePeriod time.Duration
	termWait    time.Duration // from SIGTERM to SIGKILL after a rank has failed
	killDelay   time.Duration // from a received SIGTERM to SIGKILL; no SIGKILL unless positive

	runningCount   int            // ranks
	interruptCount int            // received SIGINTs
	firstSignal    syscall.Signal // received by the launcher
	exits          []Exit         // by rank
	hasExited      []bool         // by rank
	firstFailed    int            // rank, or -1
}

// announceDelay is the time from a failure to the message about the running ranks.
const announceDelay = 2 * time.Second

type phase int

const (
	phaseRunning phase = iota
	phaseGrace
	phaseAnnounced
	phaseTerminating
	phaseKilling
	phaseDone
)

// order lists what Run does next: send signal and print message, unless they are empty, and call
// handleTimeout after wait if it is positive.
type order struct {
	signal  syscall.Signal
	wait    time.Duration
	message string
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		gracePeriod: s.Grace, termWait: s.TermWait, killDelay: s.KillDelay, runningCount: s.Ranks,
		exits:     make([]Exit, s.Ranks),
		hasExited: make([]bool, s.Ranks), firstFailed: -1,
	}
}

func (s *supervisor) handleExit(e Exit) order {
	s.exits[e.Rank], s.hasExited[e.Rank] = e, true
	s.runningCount--
	hasFailed := e.Code != 0
	if hasFailed && (s.firstFailed < 0 || e.exitIndex < s.exits[s.firstFailed].exitIndex) {
		s.firstFailed = e.Rank
	}
	switch {
	case s.runningCount == 0:
		s.phase = phaseDone
	case hasFailed && s.phase == phaseRunning:
		s.phase = phaseGrace
		if s.gracePeriod > announceDelay {
			return order{wait: announceDelay}
		}
		return s.delayOrder(s.gracePeriod)
	}
	return order{}
}

func (s *supervisor) announcementOrder() order {
	s.phase = phaseAnnounced
	rest := s.gracePeriod - announceDelay
	return order{wait: rest, message: fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.firstFailed], rest, max(s.termWait, 0))}
}

func (s *supervisor) handleTimeout() order {
	switch s.phase {
	case phaseGrace, phaseAnnounced:
		if s.phase == phaseGrace && s.gracePeriod > announceDelay {
			return s.announcementOrder()
		}
		s.phase = phaseTerminating
		o := s.delayOrder(s.termWait)
		if s.phase == phaseTerminating {
			o.signal, o.message = syscall.SIGTERM, "sending SIGTERM to the remaining ranks"
		}
		return o
	case phaseTerminating:
		o := s.killOrder()
		o.message = "sending SIGKILL to the remaining ranks"
		return o
	case phaseRunning, phaseKilling, phaseDone:
	}
	return order{}
}

// delayOrder returns an order to wait or, if wait is not positive, the order that follows the wait.
func (s *supervisor) delayOrder(wait time.Duration) order {
	if wait <= 0 {
		return s.handleTimeout()
	}
	return order{wait: wait}
}

// For SIGPIPE, handleSignal sends SIGTERM to the ranks, because they do not notice that the reader
// of the launcher's output is gone.
func (s *supervisor) handleSignal(received syscall.Signal) order {
	if s.firstSignal == 0 {
		s.firstSignal = received
	}
	if received == syscall.SIGPIPE {
		o := s.handleSignal(syscall.SIGTERM)
		o.message = "the output of the launcher was closed: sending SIGTERM to the ranks"
		return o
	}
	if received == syscall.SIGINT {
		s.interruptCount++
	}
	if s.interruptCount > 1 {
		return s.killOrder()
	}
	if received == syscall.SIGTERM && s.killDelay > 0 && s.phase < phaseTerminating {
		s.phase = phaseTerminating
		return order{signal: received, wait: s.killDelay}
	}
	return order{signal: received}
}

func (s *supervisor) killOrder() order {
	if s.phase == phaseDone {
		return order{}
	}
	s.phase = phaseKilling
	return order{signal: syscall.SIGKILL}
}

func (s *supervisor) result() Result {
	r := Result{Exits: s.exits, FirstFailed: s.firstFailed, Signal: s.firstSignal}
	if s.firstFailed >= 0 {
		r.Code = s.exits[s.firstFailed].Code
	}
	return r
}
