package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock measures the time since the start of a trace. It rarely reads the system's clock and counts
// the processor's ticks in between, which is three times as fast. It is not safe for concurrent
// use.
type clock struct {
	start time.Time
	// tickLength is in units of 2^-32 ns, measured between firstReading and latestReading.
	tickLength                  uint64
	firstReading, latestReading clockReading
	// maxTicksUntilReading is when to read the system's clock again, in ticks after latestReading. It
	// is 0 while tickLength is unknown.
	maxTicksUntilReading uint64
}

// clockReading is a tick count and the nanoseconds since the trace's start at the same moment.
type clockReading struct{ ticks, elapsed uint64 }

const (
	// Times are in nanoseconds.
	maxTimeUntilReading = uint64(time.Millisecond)
	minMeasuredTime     = uint64(5 * time.Millisecond)
	// maxReadingTicks limits the ticks between the readings of both clocks. It keeps the relative
	// error of tickLength below 1 in 1,000, and the error of now below 1 us.
	maxReadingTicks = 5000
)

// now returns nanoseconds, which can decrease by up to 1 us.
func (c *clock) now() uint64 {
	ticks := spin.Ticks() - c.latestReading.ticks
	if ticks >= c.maxTicksUntilReading {
		return c.readSystemClock()
	}
	return c.latestReading.elapsed + c.nanoseconds(ticks)
}

func (c *clock) nanoseconds(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tickLength)
	return high<<32 | low>>32
}

func (c *clock) readSystemClock() uint64 {
	r, isPrecise := c.readBothClocks()
	if isPrecise {
		c.measure(r)
	} else {
		c.maxTicksUntilReading = 0
	}
	return r.elapsed
}

// readBothClocks returns false if the thread was interrupted between the readings.
func (c *clock) readBothClocks() (r clockReading, isPrecise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	return r, spin.Ticks()-r.ticks < maxReadingTicks
}

// measure starts again from r if the processor's tick rate has changed.
func (c *clock) measure(r clockReading) {
	ticks, elapsed := r.ticks-c.latestReading.ticks, r.elapsed-c.latestReading.elapsed
	rateHasChanged := c.maxTicksUntilReading > 0 &&
		absDiff(c.nanoseconds(ticks), elapsed) > elapsed/1024+10_000
	if rateHasChanged || c.firstReading.ticks == 0 {
		c.firstReading, c.maxTicksUntilReading = r, 0
	}
	c.latestReading = r
	ticks, elapsed = r.ticks-c.firstReading.ticks, r.elapsed-c.firstReading.elapsed
	if elapsed < minMeasuredTime || ticks == 0 {
		return
	}
	if high, low := elapsed>>32, elapsed<<32; high < ticks {
		c.tickLength, _ = bits.Div64(high, low, ticks)
		c.maxTicksUntilReading, _ = bits.Div64(
			maxTimeUntilReading>>32, maxTimeUntilReading<<32, max(c.tickLength, 1))
	}
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
