package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor decides what happens to the ranks. It is a pure state machine: events in, orders out;
// Run feeds it and executes the orders.
//
// Its phases and transitions:
//
//	running      some ranks run, none has failed
//	grace        a rank has failed; the others may still report. From running, by a failure
//	announced    the same, after a message that lists the running ranks. From grace, after notice
//	terminating  SIGTERM was sent. From grace or announced, when the grace is over; from all of
//	             these by a SIGTERM from outside
//	killing      SIGKILL was sent. From terminating, when that time is over; from any phase by a
//	             second SIGINT or the end of the context
//	done         all ranks have ended. From any phase, by the last exit
//
// Other signals are passed on in any phase and cause no transition.
type supervisor struct {
	phase phase
	grace time.Duration
	term  time.Duration
	// kills is the time from a SIGTERM from outside to SIGKILL; no SIGKILL if it is not positive.
	kills time.Duration
	// remaining is the number of running ranks.
	remaining int
	// interrupts counts SIGINT, and outside is the first signal from outside.
	interrupts int
	outside    syscall.Signal
	// exits holds the results by rank, and ended marks the known ones. first is the rank that
	// failed first, or -1.
	exits []Exit
	ended []bool
	first int
}

// announceDelay is the time after a failure until a message lists the ranks that still run. Most
// jobs end faster.
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

// order instructs Run to send a signal to all ranks and, if wait is positive, to call expired
// after that time, replacing an earlier wait. The message is printed for users, with the ranks that
// have not ended.
type order struct {
	signal  syscall.Signal
	wait    time.Duration
	message string
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		grace: s.Grace, term: s.TermWait, kills: s.KillAfter, remaining: s.Ranks,
		exits: make([]Exit, s.Ranks),
		ended: make([]bool, s.Ranks), first: -1,
	}
}

// exited handles the end of a rank.
func (v *supervisor) exited(e Exit) order {
	v.exits[e.Rank], v.ended[e.Rank] = e, true
	v.remaining--
	failed := e.Code != 0
	if failed && (v.first < 0 || e.turn < v.exits[v.first].turn) {
		v.first = e.Rank
	}
	switch {
	case v.remaining == 0:
		v.phase = done
	case failed && v.phase == running:
		v.phase = grace
		if v.grace > announceDelay {
			return order{wait: announceDelay}
		}
		return v.after(v.grace)
	}
	return order{}
}

// announce lets the user know how much time the other ranks have.
func (v *supervisor) announce() order {
	v.phase = announced
	rest := v.grace - announceDelay
	return order{wait: rest, message: fmt.Sprintf(
		"%v; other ranks still run: they have %v more, then SIGTERM, and SIGKILL %v later",
		v.exits[v.first], rest, max(v.term, 0))}
}

// expired handles the end of the last order's wait.
func (v *supervisor) expired() order {
	switch v.phase {
	case grace, announced:
		if v.phase == grace && v.grace > announceDelay {
			return v.announce()
		}
		v.phase = terminating
		o := v.after(v.term)
		if v.phase == terminating {
			o.signal, o.message = syscall.SIGTERM, "their time is over: SIGTERM"
		}
		return o
	case terminating:
		o := v.kill()
		o.message = "they have not ended: SIGKILL"
		return o
	case running, killing, done:
	}
	return order{}
}

// after waits, or expires at once if there is no time to wait.
func (v *supervisor) after(wait time.Duration) order {
	if wait <= 0 {
		return v.expired()
	}
	return order{wait: wait}
}

// signaled handles a signal from outside, or SIGPIPE if the reader of the ranks' output was closed.
// It forwards SIGPIPE as SIGTERM, since the pipes of the ranks still have a reader.
func (v *supervisor) signaled(s syscall.Signal) order {
	if v.outside == 0 {
		v.outside = s
	}
	if s == syscall.SIGPIPE {
		o := v.signaled(syscall.SIGTERM)
		o.message = "their output has no reader any more: SIGTERM"
		return o
	}
	if s == syscall.SIGINT {
		v.interrupts++
	}
	if v.interrupts > 1 {
		return v.kill()
	}
	if s == syscall.SIGTERM && v.kills > 0 && v.phase < terminating {
		v.phase = terminating
		return order{signal: s, wait: v.kills}
	}
	return order{signal: s}
}

// kill sends SIGKILL to all ranks.
func (v *supervisor) kill() order {
	if v.phase == done {
		return order{}
	}
	v.phase = killing
	return order{signal: syscall.SIGKILL}
}

// result returns the Result after the last exit.
func (v *supervisor) result() Result {
	r := Result{Exits: v.exits, First: v.first, Signal: v.outside}
	if v.first >= 0 {
		r.Code = v.exits[v.first].Code
	}
	return r
}
