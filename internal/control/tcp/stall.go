package tcp

import "time"

const (
	// stallThreshold is the time between two ticks of statusInterval after which this process is
	// considered to have been stopped, or to have had no CPU.
	stallThreshold = 3 * statusInterval
	// catchUpTicks is the number of ticks that a process then has to read the messages of others.
	catchUpTicks = 3
)

// stallDetector detects from ticks whether this process has been running. If it has not, messages
// of others may have arrived without being read, and this rank is the late one. The zero value
// represents a process that has never run.
//
// A process that is stopped repeatedly, so that no tick is in time, still counts as caught up at
// every fourth tick. So it cannot postpone a timeout forever.
type stallDetector struct {
	last      time.Time // when it last ticked
	ticksLeft int       // until the messages of others count as read
}

// tick records that the process runs, and reports whether it has just caught up after a stall.
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

// mayBeStale reports whether messages of others may be unread.
func (r *stallDetector) mayBeStale(now time.Time) bool {
	return r.ticksLeft > 0 || now.Sub(r.last) > stallThreshold
}
