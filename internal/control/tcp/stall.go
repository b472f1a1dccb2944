package tcp

import "time"

const (
	// stallThreshold is the longest normal time between two ticks. After a longer time, the process
	// was stopped or starved of CPU time.
	stallThreshold = 3 * statusInterval
	// catchUpTicks is the number of ticks that this process needs after a stall to read all
	// messages.
	catchUpTicks = 3
	// catchUpLimit bounds how long CanSucceed waits until this process has caught up.
	catchUpLimit = 2 * time.Second
)

// stallDetector detects from regular ticks whether this process was stopped or starved. During such
// a stall, other ranks' messages are not read, so these ranks may seem late.
//
// Even if all its ticks are late, a process counts as caught up at every fourth tick, so that it
// cannot postpone a timeout forever.
type stallDetector struct {
	last      time.Time // time of the last tick
	ticksLeft int       // ticks until this process has caught up
}

func (d *stallDetector) tick(now time.Time) (caughtUp bool) {
	late := now.Sub(d.last) > stallThreshold
	d.last = now
	switch {
	case d.ticksLeft > 0:
		d.ticksLeft--
		return d.ticksLeft == 0
	case late:
		d.ticksLeft = catchUpTicks
	}
	return false
}

func (d *stallDetector) mayBeStale(now time.Time) bool {
	return d.ticksLeft > 0 || now.Sub(d.last) > stallThreshold
}
