package launch

import (
	"cmp"
	"fmt"
	"syscall"
	"time"
)

// supervisor decides when the processes of a job, called ranks, get which signals. For each event,
// Run calls a method and carries out the returned order.
type supervisor struct {
	phase       phase
	gracePeriod time.Duration // from the first failure to SIGTERM; negative: SIGTERM immediately
	termWait    time.Duration // from that SIGTERM to SIGKILL; negative: SIGKILL instead of SIGTERM
	killDelay   time.Duration // from a received SIGTERM to SIGKILL; negative: no SIGKILL

	runningCount   int
	interruptCount int            // received SIGINTs
	firstSignal    syscall.Signal // first received signal, or 0
	exits          []Exit         // by rank
	hasExited      []bool         // by rank
	firstFailed    int            // rank that failed first, or -1
}

// announceDelay is the time from a failure to the message that announces SIGTERM. If all ranks exit
// sooner, the message is omitted.
const announceDelay = 2 * time.Second

// phase is a phase of a job. A job can skip phases, but does not return to an earlier one.
type phase int

const (
	phaseRunning     phase = iota // no rank has failed
	phaseGrace                    // a rank has failed; the others have time to report this
	phaseAnnounced                // SIGTERM was announced; the grace period continues
	phaseTerminating              // SIGTERM was sent; SIGKILL follows
	phaseKilling                  // SIGKILL was sent
	phaseDone                     // all ranks have exited
)

// order contains actions for Run. The zero order is no action.
type order struct {
	signal  syscall.Signal // signal to send to the running ranks, or 0
	wait    time.Duration  // new time until handleTimeout, or 0 for no change
	message string         // to print, or ""
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

	isFirstFailure := e.Code != 0 && s.phase == phaseRunning
	if isFirstFailure {
		return s.startGracePeriod()
	}

	return order{}
}

func (s *supervisor) recordExit(e Exit) {
	s.exits[e.Rank] = e
	s.hasExited[e.Rank] = true
	s.runningCount--
	if e.Code == 0 {
		return
	}

	// exitIndex decides, because exits are not always recorded in order.
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

func (s *supervisor) announceSIGTERM() order {
	s.phase = phaseAnnounced
	timeToSIGTERM := s.gracePeriod - announceDelay
	timeToSIGKILL := max(s.termWait, 0)
	message := fmt.Sprintf(
		"%v; other ranks are still running: they get SIGTERM in %v and SIGKILL %v later",
		s.exits[s.firstFailed], timeToSIGTERM, timeToSIGKILL)
	return order{wait: timeToSIGTERM, message: message}
}

// handleTimeout starts the next phase after the wait of an order.
func (s *supervisor) handleTimeout() order {
	switch s.phase {
	case phaseGrace:
		if s.gracePeriod > announceDelay {
			return s.announceSIGTERM()
		}

		return s.terminate()
	case phaseAnnounced:
		return s.terminate()
	case phaseTerminating:
		return s.killWithMessage()
	case phaseRunning, phaseKilling, phaseDone: // no wait
	}

	return order{}
}

func (s *supervisor) terminate() order {
	if s.termWait <= 0 {
		return s.killWithMessage()
	}

	s.phase = phaseTerminating
	return order{
		signal:  syscall.SIGTERM,
		wait:    s.termWait,
		message: "sending SIGTERM to the remaining ranks",
	}
}

func (s *supervisor) killWithMessage() order {
	o := s.kill()
	o.message = "sending SIGKILL to the remaining ranks"
	return o
}

// handleSignal forwards a signal that the launcher received. It replaces SIGPIPE, which means that
// the launcher's output was closed, by SIGTERM.
func (s *supervisor) handleSignal(received syscall.Signal) order {
	s.firstSignal = cmp.Or(s.firstSignal, received)
	if received == syscall.SIGPIPE {
		o := s.forward(syscall.SIGTERM)
		o.message = "the output of the launcher was closed: sending SIGTERM to the ranks"
		return o
	}

	if received == syscall.SIGINT {
		s.interruptCount++
	}

	return s.forward(received)
}

// forward sends signal or, after a second SIGINT, SIGKILL. SIGTERM also starts killDelay.
func (s *supervisor) forward(signal syscall.Signal) order {
	if s.interruptCount > 1 {
		return s.kill()
	}

	o := order{signal: signal}
	isTermination := signal == syscall.SIGTERM && s.phase < phaseTerminating
	startsKillDelay := isTermination && s.killDelay > 0
	if startsKillDelay {
		s.phase = phaseTerminating
		o.wait = s.killDelay
	}

	return o
}

// kill orders SIGKILL if ranks are running.
func (s *supervisor) kill() order {
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
