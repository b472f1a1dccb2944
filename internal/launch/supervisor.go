package launch

import (
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
//	terminating  SIGTERM was sent. From grace, when the grace is over
//	killing      SIGKILL was sent. From terminating, when that time is over; from any phase by a
//	             second SIGINT or the end of the context
//	done         all ranks have ended. From any phase, by the last exit
//
// Other signals are passed on in any phase and move nothing.
type supervisor struct {
	phase phase
	grace time.Duration
	term  time.Duration
	// left is how many ranks run.
	left int
	// interrupts counts SIGINT.
	interrupts int
	// exits are the results by rank; first is the rank that failed first, or -1.
	exits []Exit
	first int
}

type phase int

const (
	running phase = iota
	grace
	terminating
	killing
	done
)

// order is what Run shall do: send a signal to all ranks, and if wait is positive call expired
// after that time, in place of an earlier wait.
type order struct {
	signal syscall.Signal
	wait   time.Duration
}

func newSupervisor(s *Spec) *supervisor {
	return &supervisor{
		grace: s.Grace, term: s.TermWait, left: s.Ranks, exits: make([]Exit, s.Ranks), first: -1,
	}
}

// exited takes in that a rank has ended.
func (v *supervisor) exited(e Exit) order {
	v.exits[e.Rank] = e
	v.left--
	failed := e.Code != 0
	if failed && (v.first < 0 || e.turn < v.exits[v.first].turn) {
		v.first = e.Rank
	}
	switch {
	case v.left == 0:
		v.phase = done
	case failed && v.phase == running:
		v.phase = grace
		return v.after(v.grace)
	}
	return order{}
}

// expired takes in that the wait of the last order is over.
func (v *supervisor) expired() order {
	switch v.phase {
	case grace:
		v.phase = terminating
		o := v.after(v.term)
		if v.phase == terminating {
			o.signal = syscall.SIGTERM
		}
		return o
	case terminating:
		return v.kill()
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

// signaled takes in a signal from outside.
func (v *supervisor) signaled(s syscall.Signal) order {
	if s == syscall.SIGINT {
		v.interrupts++
	}
	if v.interrupts > 1 {
		return v.kill()
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
	r := Result{Exits: v.exits, First: v.first}
	if v.first >= 0 {
		r.Code = v.exits[v.first].Code
	}
	return r
}
