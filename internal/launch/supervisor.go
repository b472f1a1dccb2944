package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor decides when the processes of a job, called ranks, get which signals. It does no I/O:
// its methods handle events, and return orders for Run to execute.
type supervisor struct {
	phase       phase
	gracePeriod time.Duration // from the first failure to SIGTERM; none if <= 0
	termWait    time.Duration // from SIGTERM to SIGKILL; if <= 0, SIGKILL replaces SIGTERM
	killDelay   time.Duration // from a SIGTERM for the launcher to SIGKILL; if <= 0, no SIGKILL

	runningCount   int
	interruptCount int            // SIGINTs that the launcher received
	firstSignal    syscall.Signal // first signal that the launcher received, or 0
	exits          []Exit         // by rank
	hasExited      []bool         // by rank
	firstFailed    int            // rank that failed first, or -1
}

// announceDelay is the time from a failure to the message about running ranks, which usually exit
// sooner.
const announceDelay = 2 * time.Second

// phase is a phase of a job. A job can skip phases, but does not return to an earlier one.
type phase int

const (
	phaseRunning     phase = iota // no rank has failed
	phaseGrace                    // a rank has failed, and the others may report what they know
	phaseAnnounced                // a message has announced SIGTERM, and the grace period continues
	phaseTerminating              // SIGTERM was sent
	phaseKilling                  // SIGKILL was sent
	phaseDone                     // all ranks have exited
)

// order is what Run does next. The zero value means nothing.
type order struct {
	signal  syscall.Signal // to the running ranks, or 0
	wait    time.Duration  // until handleTimeout; 0 continues an earlier wait
	message string         // for the user, or ""
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		phase:        phaseRunning,
		gracePeriod:  s.Grace,
		termWait:     s.TermWait,
		killDelay:    s.KillDelay,
		runningCount: s.Ranks,
		exits:        make([]Exit, s.Ranks),
		hasExited:    make([]bool, s.Ranks),
		firstFailed:  -1,
	}
}

// handleExit records the exit of a rank. The first failure starts the grace period.
func (s *supervisor) handleExit(e Exit) order {
	s.recordExit(e)
	if s.runningCount == 0 {
		s.phase = phaseDone
		return order{}
	}

	hasFailed := e.Code != 0
	if hasFailed && s.phase == phaseRunning {
		return s.startGracePeriod()
	}

	return order{}
}

// recordExit uses exitIndex to find the first failure, because exits may be recorded out of order.
func (s *supervisor) recordExit(e Exit) {
	s.exits[e.Rank] = e
	s.hasExited[e.Rank] = true
	s.runningCount--
	if e.Code == 0 {
		return
	}

	isFirst := s.firstFailed < 0 || e.exitIndex < s.exits[s.firstFailed].exitIndex
	if isFirst {
		s.firstFailed = e.Rank
	}
}

func (s *supervisor) startGracePeriod() order {
	s.phase = phaseGrace
	if s.gracePeriod <= 0 {
		return s.terminate()
	}

	return order{wait: min(s.gracePeriod, announceDelay)}
}

// announceRunning announces SIGTERM for the running ranks at the end of the grace period.
func (s *supervisor) announceRunning() order {
	s.phase = phaseAnnounced
	rest := s.gracePeriod - announceDelay
	message := fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.firstFailed], rest, max(s.termWait, 0))
	return order{wait: rest, message: message}
}

// handleTimeout starts the next phase after the wait of an order.
func (s *supervisor) handleTimeout() order {
	switch s.phase {
	case phaseGrace:
		if s.gracePeriod > announceDelay {
			return s.announceRunning()
		}

		return s.terminate()
	case phaseAnnounced:
		return s.terminate()
	case phaseTerminating:
		return s.killRemaining()
	case phaseRunning, phaseKilling, phaseDone: // no wait ends in these phases
	}

	return order{}
}

func (s *supervisor) terminate() order {
	if s.termWait <= 0 {
		return s.killRemaining()
	}

	s.phase = phaseTerminating
	return order{
		signal:  syscall.SIGTERM,
		wait:    s.termWait,
		message: "sending SIGTERM to the remaining ranks",
	}
}

func (s *supervisor) killRemaining() order {
	o := s.kill()
	o.message = "sending SIGKILL to the remaining ranks"
	return o
}

// handleSignal forwards a signal that the launcher received. A second SIGINT kills the ranks. After
// SIGTERM, they have killDelay to exit. SIGPIPE becomes SIGTERM, because the ranks would not notice
// that the launcher's output was closed.
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

	isTerminating := s.phase >= phaseTerminating
	startsKillDelay := received == syscall.SIGTERM && !isTerminating && s.killDelay > 0
	if startsKillDelay {
		s.phase = phaseTerminating
		return order{signal: received, wait: s.killDelay}
	}

	return order{signal: received}
}

// kill orders SIGKILL, unless all ranks have exited.
func (s *supervisor) kill() order {
	if s.phase == phaseDone {
		return order{}
	}

	s.phase = phaseKilling
	return order{signal: syscall.SIGKILL}
}

// result takes the exit code from the rank that failed first.
func (s *supervisor) result() Result {
	r := Result{Exits: s.exits, FirstFailed: s.firstFailed, Signal: s.firstSignal}
	if s.firstFailed >= 0 {
		r.Code = s.exits[s.firstFailed].Code
	}

	return r
}
