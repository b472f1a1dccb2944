package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock measures the time since the start of a trace. It counts processor ticks and rarely reads
// the system's clock, because that takes a third of the time. A clock is not safe for concurrent
// use.
type clock struct {
	start time.Time
	// tick is the length of a processor tick in units of 2^-32 ns, measured between first and
	// latest.
	tick          uint64
	first, latest reading
	// limit is the number of ticks after latest at which the system's clock is read again. It is 0
	// while the length of a tick is unknown.
	limit uint64
}

// reading holds the processor's tick count and the nanoseconds since the start of the trace at one
// moment.
type reading struct{ ticks, elapsed uint64 }

const (
	// maxTicking is the time after which the system's clock must be read again.
	maxTicking = uint64(time.Millisecond)
	// minMeasured is the minimum time from which the length of a tick is computed.
	minMeasured = uint64(5 * time.Millisecond)
	// maxTicksApart limits the ticks during a precise reading. It keeps the relative error of the
	// length of a tick below 1 in 1,000, and the error of the time below 1 us.
	maxTicksApart = 5000
)

// now returns the nanoseconds since the start of the trace. Successive results may decrease by less
// than 1 us.
func (c *clock) now() uint64 {
	past := spin.Ticks() - c.latest.ticks
	if past >= c.limit {
		return c.read()
	}
	return c.latest.elapsed + c.length(past)
}

func (c *clock) length(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tick)
	return high<<32 | low>>32
}

func (c *clock) read() uint64 {
	r, precise := c.takeReading()
	if precise {
		c.measure(r)
	} else {
		c.limit = 0
	}
	return r.elapsed
}

// takeReading reads both clocks. precise is false if the thread was interrupted in between.
func (c *clock) takeReading() (r reading, precise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	return r, spin.Ticks()-r.ticks < maxTicksApart
}

// measure updates the length of a tick with a new reading. If the processor's tick rate has
// changed, measure starts over with r as the first reading.
func (c *clock) measure(r reading) {
	past, elapsed := r.ticks-c.latest.ticks, r.elapsed-c.latest.elapsed
	if c.limit > 0 && absDiff(c.length(past), elapsed) > elapsed/1024+10_000 || c.first.ticks == 0 {
		c.first, c.limit = r, 0
	}
	c.latest = r
	past, elapsed = r.ticks-c.first.ticks, r.elapsed-c.first.elapsed
	if elapsed < minMeasured || past == 0 {
		return
	}
	if high, low := elapsed>>32, elapsed<<32; high < past {
		c.tick, _ = bits.Div64(high, low, past)
		c.limit, _ = bits.Div64(maxTicking>>32, maxTicking<<32, max(c.tick, 1))
	}
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
