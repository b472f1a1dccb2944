package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock measures the time since the start of a trace. It counts processor ticks, which takes a
// third of the time of reading the system's clock, and reads that clock only now and then. A clock
// is not safe for concurrent use.
type clock struct {
	start time.Time
	// tickLength is in units of 2^-32 ns, measured between first and latest.
	tickLength    uint64
	first, latest reading
	// maxTicks is the number of ticks after latest at which the system's clock is read again. It is
	// 0 while tickLength is unknown.
	maxTicks uint64
}

// reading holds the processor's tick count and, for the same moment, the nanoseconds since the
// start of the trace.
type reading struct{ ticks, elapsed uint64 }

const (
	// maxCounting is the time after which the system's clock must be read again.
	maxCounting = uint64(time.Millisecond)
	// minMeasuredTime is the minimum time from which tickLength is computed.
	minMeasuredTime = uint64(5 * time.Millisecond)
	// maxTicksApart limits the ticks while both clocks are read. It keeps the relative error of
	// tickLength below 1 in 1,000, and the error of the time below 1 us.
	maxTicksApart = 5000
)

// now returns the nanoseconds since the start of the trace. Successive results may decrease by less
// than 1 us.
func (c *clock) now() uint64 {
	past := spin.Ticks() - c.latest.ticks
	if past >= c.maxTicks {
		return c.read()
	}
	return c.latest.elapsed + c.nanoseconds(past)
}

func (c *clock) nanoseconds(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tickLength)
	return high<<32 | low>>32
}

func (c *clock) read() uint64 {
	r, precise := c.readBoth()
	if precise {
		c.measure(r)
	} else {
		c.maxTicks = 0
	}
	return r.elapsed
}

// readBoth reads both clocks. precise is false if the thread was interrupted in between.
func (c *clock) readBoth() (r reading, precise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	return r, spin.Ticks()-r.ticks < maxTicksApart
}

// measure updates tickLength with a new reading. If the processor's tick rate has changed, measure
// starts over with r as the first reading.
func (c *clock) measure(r reading) {
	past, elapsed := r.ticks-c.latest.ticks, r.elapsed-c.latest.elapsed
	changed := c.maxTicks > 0 && absDiff(c.nanoseconds(past), elapsed) > elapsed/1024+10_000
	if changed || c.first.ticks == 0 {
		c.first, c.maxTicks = r, 0
	}
	c.latest = r
	past, elapsed = r.ticks-c.first.ticks, r.elapsed-c.first.elapsed
	if elapsed < minMeasuredTime || past == 0 {
		return
	}
	if high, low := elapsed>>32, elapsed<<32; high < past {
		c.tickLength, _ = bits.Div64(high, low, past)
		c.maxTicks, _ = bits.Div64(maxCounting>>32, maxCounting<<32, max(c.tickLength, 1))
	}
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
