package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor is a state machine that decides when the ranks get which signals. Its methods handle
// events and return the orders that Run executes. It has these phases:
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
	gracePeriod time.Duration // from the first failure to SIGTERM; none unless positive
	termWait    time.Duration // from SIGTERM to SIGKILL after a failure; none unless positive
	killDelay   time.Duration // from a SIGTERM to the launcher until SIGKILL; 0 or less: no SIGKILL

	runningCount   int            // number of ranks that have not exited
	interruptCount int            // number of SIGINTs that the launcher received
	firstSignal    syscall.Signal // first signal that the launcher received, or 0
	exits          []Exit         // by rank; zero while the rank is running
	hasExited      []bool         // by rank
	firstFailed    int            // rank whose process failed first, or -1
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

// order lists the next steps of Run. The zero value requires nothing.
type order struct {
	signal  syscall.Signal // sent to the running ranks, or 0
	wait    time.Duration  // after which Run calls handleTimeout, unless it is 0
	message string         // printed, or ""
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		gracePeriod: s.Grace, termWait: s.TermWait, killDelay: s.KillDelay, runningCount: s.Ranks,
		exits:     make([]Exit, s.Ranks),
		hasExited: make([]bool, s.Ranks), firstFailed: -1,
	}
}

// handleExit records the exit of a rank. The first failure starts the grace period.
func (s *supervisor) handleExit(e Exit) order {
	s.exits[e.Rank], s.hasExited[e.Rank] = e, true
	s.runningCount--
	hasFailed := e.Code != 0
	// Exits can be handled in another order than that in which the processes ended.
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
		return s.delayTimeout(s.gracePeriod)
	}
	return order{}
}

// announceRunning returns the message about the running ranks, and waits for the rest of the grace
// period.
func (s *supervisor) announceRunning() order {
	s.phase = phaseAnnounced
	rest := s.gracePeriod - announceDelay
	return order{wait: rest, message: fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.firstFailed], rest, max(s.termWait, 0))}
}

// handleTimeout starts the next phase after the wait of an order.
func (s *supervisor) handleTimeout() order {
	switch s.phase {
	case phaseGrace, phaseAnnounced:
		if s.phase == phaseGrace && s.gracePeriod > announceDelay {
			return s.announceRunning()
		}
		s.phase = phaseTerminating
		o := s.delayTimeout(s.termWait)
		isKilling := s.phase == phaseKilling // without a wait, only SIGKILL is sent
		if !isKilling {
			o.signal, o.message = syscall.SIGTERM, "sending SIGTERM to the remaining ranks"
		}
		return o
	case phaseTerminating:
		o := s.kill()
		o.message = "sending SIGKILL to the remaining ranks"
		return o
	case phaseRunning, phaseKilling, phaseDone:
	}
	return order{}
}

// delayTimeout returns an order to wait. If wait is not positive, it handles the timeout at once.
func (s *supervisor) delayTimeout(wait time.Duration) order {
	if wait <= 0 {
		return s.handleTimeout()
	}
	return order{wait: wait}
}

// handleSignal forwards a signal that the launcher received. A second SIGINT kills the ranks, and
// SIGTERM starts killDelay. For SIGPIPE, handleSignal sends SIGTERM instead, because the ranks do
// not notice that the reader of the launcher's output is gone.
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
		return s.kill()
	}
	if received == syscall.SIGTERM && s.killDelay > 0 && s.phase < phaseTerminating {
		s.phase = phaseTerminating
		return order{signal: received, wait: s.killDelay}
	}
	return order{signal: received}
}

// kill returns an order to send SIGKILL, unless all ranks have exited.
func (s *supervisor) kill() order {
	if s.phase == phaseDone {
		return order{}
	}
	s.phase = phaseKilling
	return order{signal: syscall.SIGKILL}
}

// result returns the state for Run's caller. Its code is that of the rank that failed first, or 0.
func (s *supervisor) result() Result {
	r := Result{Exits: s.exits, FirstFailed: s.firstFailed, Signal: s.firstSignal}
	if s.firstFailed >= 0 {
		r.Code = s.exits[s.firstFailed].Code
	}
	return r
}
