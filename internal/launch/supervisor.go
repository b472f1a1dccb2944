package launch

import (
	"fmt"
	"syscall"
	"time"
)

// supervisor decides what happens to the ranks. It is pure: events in, orders out; Run feeds it
// and carries the orders out.
//
// Its phases, and what moves it on:
//
//	running      some ranks run, none has failed
//	grace        a rank has failed; the others may still report. From running, by a failure
//	announced    the same, and it was said which ranks are awaited. From grace, after notice
//	terminating  SIGTERM was sent. From grace or announced, when the grace is over; from all of
//	             these by a SIGTERM from outside
//	killing      SIGKILL was sent. From terminating, when that time is over; from any phase by a
//	             second SIGINT or the end of the context
//	done         all ranks have ended. From any phase, by the last exit
//
// Other signals are passed on in any phase and move nothing.
type supervisor struct {
	phase phase
	grace time.Duration
	term  time.Duration
	// kills is the time from a SIGTERM from outside to SIGKILL; not positive if there is none.
	kills time.Duration
	// remaining is how many ranks run.
	remaining int
	// interrupts counts SIGINT, and outside is the first signal from outside.
	interrupts int
	outside    syscall.Signal
	// exits are the results by rank; ended says which of them are known. First is the rank that
	// failed first, or -1.
	exits []Exit
	ended []bool
	first int
}

// announceDelay is how long the others have after a failure before it is said that they are
// awaited: most ends take less.
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

// order is what Run shall do: send a signal to all ranks, and if wait is positive call expired
// after that time, in place of an earlier wait. The message is printed for users, with the ranks
// that have not ended.
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

// exited takes in that a rank has ended.
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

// announce says how long the others have.
func (v *supervisor) announce() order {
	v.phase = announced
	rest := v.grace - announceDelay
	return order{wait: rest, message: fmt.Sprintf(
		"%v; of the others some still run: they have %v more, then SIGTERM, and SIGKILL %v later",
		v.exits[v.first], rest, max(v.term, 0))}
}

// expired takes in that the wait of the last order is over.
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

// after waits, or goes on at once where there is no time to wait.
func (v *supervisor) after(wait time.Duration) order {
	if wait <= 0 {
		return v.expired()
	}
	return order{wait: wait}
}

// signaled handles a signal from outside, or SIGPIPE if the output of the ranks has lost its
// reader. It forwards SIGPIPE as SIGTERM, since the pipes of the ranks still have a reader.
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

// kill ends all ranks at once.
func (v *supervisor) kill() order {
	if v.phase == done {
		return order{}
	}
	v.phase = killing
	return order{signal: syscall.SIGKILL}
}

// result sums up after the last exit.
func (v *supervisor) result() Result {
	r := Result{Exits: v.exits, First: v.first, Signal: v.outside}
	if v.first >= 0 {
		r.Code = v.exits[v.first].Code
	}
	return r
}
