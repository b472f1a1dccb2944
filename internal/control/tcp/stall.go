package tcp

import "time"

const (
	// stallThreshold is the longest normal time between two ticks. If more time passes, the process
	// is assumed to have been stopped or starved of CPU time.
	stallThreshold = 3 * statusInterval
	// catchUpTicks is the number of ticks that this process needs after a stall to read its
	// backlog of messages.
	catchUpTicks = 3
	// catchUpLimit limits the time for which CanSucceed waits until this process has caught up.
	catchUpLimit = 2 * time.Second
)

// stallDetector detects whether this process was stopped or starved, from the times of regular
// ticks. During such a stall, messages from other ranks arrive but are not read, so these ranks
// may seem late. The zero value represents a process that has never run.
//
// If a process is stopped again and again, all its ticks may be late. It still counts as caught up
// at every fourth tick, so that it cannot postpone a timeout forever.
type stallDetector struct {
	last      time.Time // time of the last tick
	ticksLeft int       // ticks until this process has caught up
}

// tick records a tick, and reports whether this process has just caught up after a stall.
func (r *stallDetector) tick(now time.Time) (caughtUp bool) {
	late := now.Sub(r.last) > stallThreshold
	r.last = now
	switch {
	case r.ticksLeft > 0:
		r.ticksLeft--
		return r.ticksLeft == 0
	case late:
		r.ticksLeft = catchUpTicks
	}
	return false
}

// mayBeStale reports whether other ranks' messages may have arrived without being read.
func (r *stallDetector) mayBeStale(now time.Time) bool {
	return r.ticksLeft > 0 || now.Sub(r.last) > stallThreshold
}
