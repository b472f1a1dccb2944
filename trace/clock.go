package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock returns the time since the start of a trace. Between two readings of the system's clock it
// counts ticks of the processor, which takes a third of the time. A clock is not safe for
// concurrent use.
type clock struct {
	start time.Time
	// tick is the length of a tick in units of 2^-32 ns. It is measured from first to latest.
	tick          uint64
	first, latest reading
	// limit is the number of ticks after which the system's clock is read again, or 0 while the
	// length of a tick is unknown.
	limit uint64
}

// reading is a simultaneous reading of the processor's ticks and of the system's clock, in
// nanoseconds since the start of the trace.
type reading struct{ ticks, elapsed uint64 }

const (
	// maxTicking bounds the time between two readings of the system's clock.
	maxTicking = uint64(time.Millisecond)
	// minMeasured is the shortest time in which the length of a tick is measured.
	minMeasured = uint64(5 * time.Millisecond)
	// maxTicksApart bounds the ticks for which a reading takes, so the length of a tick has an error
	// of less than 1 in 1,000, and the time of less than 1 us.
	maxTicksApart = 5000
)

// now returns the nanoseconds since the start of the trace. Two results may be in the wrong order
// if they differ by less than 1 us.
func (c *clock) now() uint64 {
	past := spin.Ticks() - c.latest.ticks
	if past >= c.limit {
		return c.read()
	}
	return c.latest.elapsed + c.length(past)
}

// length returns the nanoseconds of a number of ticks.
func (c *clock) length(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tick)
	return high<<32 | low>>32
}

// read reads the system's clock.
func (c *clock) read() uint64 {
	r, precise := c.take()
	if precise {
		c.measure(r)
	} else {
		c.limit = 0
	}
	return r.elapsed
}

// take takes a reading. It is not precise if the thread was interrupted.
func (c *clock) take() (r reading, precise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	return r, spin.Ticks()-r.ticks < maxTicksApart
}

// measure measures the length of a tick with a new reading. If the ticks since the latest reading
// do not fit the time, it measures anew, because the processor does not tick evenly.
func (c *clock) measure(r reading) {
	past, elapsed := r.ticks-c.latest.ticks, r.elapsed-c.latest.elapsed
	if c.limit > 0 && apart(c.length(past), elapsed) > elapsed/1024+10_000 || c.first.ticks == 0 {
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

// apart returns the distance between two numbers.
func apart(a, b uint64) uint64 { return max(a, b) - min(a, b) }
