package tcp

import "time"

const (
	// stallThreshold is the longest time between two ticks of a running process. After a longer
	// time the process counts as having been stopped or having had no CPU.
	stallThreshold = 3 * statusInterval
	// catchUpTicks counts the ticks after a stall until the messages of other ranks count as read.
	catchUpTicks = 3
)

// stallDetector detects from ticks whether this process has been running. During a stall, messages
// of other ranks may arrive without being read. These ranks then seem late. The zero value
// represents a process that has never run.
//
// A process that is stopped repeatedly may have only late ticks. It still counts as caught up at
// every fourth tick. So it cannot postpone a timeout forever.
type stallDetector struct {
	last      time.Time // time of the last tick
	ticksLeft int       // ticks until the messages of other ranks count as read
}

// tick records that the process runs, and reports whether it has now caught up after a stall.
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

// mayBeStale reports whether messages of other ranks may have arrived without being read.
func (r *stallDetector) mayBeStale(now time.Time) bool {
	return r.ticksLeft > 0 || now.Sub(r.last) > stallThreshold
}
