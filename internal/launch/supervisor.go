package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor decides when the ranks of a job get which signals. It does no I/O: its methods handle
// events, and return orders that Run executes. Suppose that rank 1 of three ranks fails, and that
// the others do not exit. With the default times, the job passes through these phases:
//
//	running      Some ranks are running, and none has failed.
//	grace        Rank 1 has failed. The others have time to print what they know about it.
//	announced    After 2 s, a message has listed the running ranks. The grace period continues.
//	terminating  The grace period has ended after 10 s. SIGTERM has been sent to ranks 0 and 2.
//	killing      After 5 more seconds, SIGKILL has been sent to them.
//	done         All ranks have exited.
//
// The launcher also forwards signals that it receives to the ranks. Of these, only SIGTERM, SIGPIPE
// and a second SIGINT can change the phase.
type supervisor struct {
	phase phase
	// gracePeriod is the time from the first failure to SIGTERM. Unless it is positive, there is no
	// grace period.
	gracePeriod time.Duration
	// termWait is the time from SIGTERM to SIGKILL after a failure. Unless it is positive, ranks get
	// SIGKILL without SIGTERM.
	termWait time.Duration
	// killDelay is the time from a SIGTERM that the launcher has received to SIGKILL. Unless it is
	// positive, the ranks then get no SIGKILL.
	killDelay time.Duration

	runningCount   int            // number of ranks that have not exited
	interruptCount int            // number of SIGINTs that the launcher received
	firstSignal    syscall.Signal // first signal that the launcher received, or 0
	exits          []Exit         // by rank; zero while the rank is running
	hasExited      []bool         // by rank
	firstFailed    int            // rank whose process failed first, or -1
}

// announceDelay is the time from a failure to the message about the running ranks. Usually, they
// exit sooner.
const announceDelay = 2 * time.Second

// phase is a phase of a job. A job can skip phases, but does not return to an earlier one.
type phase int

const (
	phaseRunning phase = iota
	phaseGrace
	phaseAnnounced
	phaseTerminating
	phaseKilling
	phaseDone
)

// order lists what Run must do next. The zero value requires nothing.
type order struct {
	signal syscall.Signal // sent to the running ranks, or 0
	// wait is the time after which Run calls handleTimeout. If it is 0, an earlier wait continues.
	wait    time.Duration
	message string // printed, or ""
}

// newSupervisor returns the supervisor of a job that has just started.
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

// recordExit records the exit of a rank for the result. Exits can be recorded in another order than
// that in which the processes ended, which exitIndex shows.
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

// startGracePeriod returns an order to wait, until the message about the running ranks is due or
// until the end of the grace period.
func (s *supervisor) startGracePeriod() order {
	s.phase = phaseGrace
	if s.gracePeriod > announceDelay {
		return order{wait: announceDelay}
	}

	return s.waitOrHandleTimeout(s.gracePeriod)
}

// announceRunning returns an order to print the message about the running ranks, and to wait for
// the rest of the grace period.
func (s *supervisor) announceRunning() order {
	s.phase = phaseAnnounced
	rest := s.gracePeriod - announceDelay
	message := fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.firstFailed], rest, max(s.termWait, 0))
	return order{wait: rest, message: message}
}

// handleTimeout starts the next phase. Call it when the wait of an order has ended.
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
		o := s.kill()
		o.message = "sending SIGKILL to the remaining ranks"
		return o
	case phaseRunning, phaseKilling, phaseDone: // There is nothing to wait for.
	}

	return order{}
}

// terminate returns an order to send SIGTERM, and SIGKILL later. Without a time between the two, it
// returns an order to send only SIGKILL.
func (s *supervisor) terminate() order {
	s.phase = phaseTerminating
	o := s.waitOrHandleTimeout(s.termWait)
	isKilling := s.phase == phaseKilling // because termWait is not positive
	if !isKilling {
		o.signal = syscall.SIGTERM
		o.message = "sending SIGTERM to the remaining ranks"
	}

	return o
}

// waitOrHandleTimeout returns an order to wait. If wait is not positive, it calls handleTimeout at
// once and returns its order. This may change the phase.
func (s *supervisor) waitOrHandleTimeout(wait time.Duration) order {
	if wait <= 0 {
		return s.handleTimeout()
	}

	return order{wait: wait}
}

// handleSignal forwards a signal that the launcher received to the ranks. A second SIGINT kills the
// ranks. After SIGTERM, they have killDelay to exit.
//
// For SIGPIPE, it sends SIGTERM instead. SIGPIPE means that the reader of the launcher's output is
// gone, which the ranks would not notice.
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

// kill returns an order to send SIGKILL, unless all ranks have exited.
func (s *supervisor) kill() order {
	if s.phase == phaseDone {
		return order{}
	}

	s.phase = phaseKilling
	return order{signal: syscall.SIGKILL}
}

// result returns the result of Run. Its exit code is that of the rank that failed first, or 0 if
// none failed.
func (s *supervisor) result() Result {
	r := Result{Exits: s.exits, FirstFailed: s.firstFailed, Signal: s.firstSignal}
	if s.firstFailed >= 0 {
		r.Code = s.exits[s.firstFailed].Code
	}

	return r
}
