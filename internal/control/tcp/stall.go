package tcp

import "time"

const (
	// stallThreshold is how much time between two ticks of statusInterval means that this process
	// was stopped, or had no processor.
	stallThreshold = 3 * statusInterval
	// catchUpTicks is how many ticks a process has then to read the messages of others.
	catchUpTicks = 3
)

// stallDetector knows from ticks whether this process has run lately. If it has not, messages of
// others may have come that were not read yet, and it is this rank that is late. Its zero value has
// never run.
//
// A process that is stopped again and again, so that no tick comes in time, still counts as caught
// up at every fourth tick: it cannot put off a timeout forever.
type stallDetector struct {
	last      time.Time // when it last ticked
	ticksLeft int       // until the messages of others are taken to be read
}

// tick notes that the process runs, and reports whether it has just caught up after a stall.
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

// mayBeStale reports whether messages of others may not be read yet.
func (r *stallDetector) mayBeStale(now time.Time) bool {
	return r.ticksLeft > 0 || now.Sub(r.last) > stallThreshold
}
