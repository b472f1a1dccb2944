package tcp

import "time"

const (
	// stallThreshold is the longest time between ticks of a process that runs normally.
	stallThreshold = 3 * statusInterval
	// catchUpTicks ticks after a stall, all messages have been read.
	catchUpTicks = 3
	// catchUpLimit bounds how long CanSucceed waits for that.
	catchUpLimit = 2 * time.Second
)

// stallDetector detects from regular ticks whether this process was stopped or starved. Other
// ranks' messages are then unread, so they may seem late.
//
// Even if all ticks are late, every fourth one ends a stall: it must not postpone a timeout
// forever.
type stallDetector struct {
	last      time.Time // time of the last tick
	ticksLeft int       // ticks until this process has caught up
}

func (d *stallDetector) tick(now time.Time) (hasCaughtUp bool) {
	isLate := now.Sub(d.last) > stallThreshold
	d.last = now
	switch {
	case d.ticksLeft > 0:
		d.ticksLeft--
		return d.ticksLeft == 0
	case isLate:
		d.ticksLeft = catchUpTicks
	}

	return false
}

func (d *stallDetector) mayBeStale(now time.Time) bool {
	return d.ticksLeft > 0 || now.Sub(d.last) > stallThreshold
}
