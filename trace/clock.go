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
	start time.Time // of the trace
	// tickLength is the time of a tick in units of 2^-32 ns, so that it can be a fraction of a
	// nanosecond. It is measured between firstReading and latestReading.
	tickLength                  uint64
	firstReading, latestReading clockReading
	// maxTicksUntilReading is when to read the system's clock again, in ticks after latestReading. It
	// is 0 while tickLength is unknown.
	maxTicksUntilReading uint64
}

// clockReading is a tick count and the nanoseconds since the trace's start at the same moment.
type clockReading struct{ ticks, elapsed uint64 }

const (
	// maxTimeUntilReading, in nanoseconds, is how long now relies on tickLength.
	maxTimeUntilReading = uint64(time.Millisecond)
	// minMeasuredTime, in nanoseconds, is how long ticks are counted to determine tickLength.
	minMeasuredTime = uint64(5 * time.Millisecond)
	// maxReadingTicks limits the ticks between the readings of both clocks. It keeps the relative
	// error of tickLength below 1 in 1,000, and the error of now below 1 us.
	maxReadingTicks = 5000
)

// now returns the time since the start in nanoseconds. Between calls, it can decrease by up to
// 1 us.
func (c *clock) now() uint64 {
	ticks := spin.Ticks() - c.latestReading.ticks
	if ticks >= c.maxTicksUntilReading {
		return c.readSystemClock()
	}

	return c.latestReading.elapsed + c.nanoseconds(ticks)
}

// nanoseconds returns ticks*tickLength/2^32. The product has up to 128 bits.
func (c *clock) nanoseconds(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tickLength)
	return high<<32 | low>>32
}

// readSystemClock returns the time since the start in nanoseconds. It also measures tickLength.
func (c *clock) readSystemClock() uint64 {
	r, isPrecise := c.readBothClocks()
	if isPrecise {
		c.measure(r)
	} else {
		c.maxTicksUntilReading = 0 // the next now tries again
	}

	return r.elapsed
}

// readBothClocks reads the ticks and the system's clock. isPrecise is false if the thread was
// interrupted between these readings.
func (c *clock) readBothClocks() (r clockReading, isPrecise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	ticksBetween := spin.Ticks() - r.ticks
	return r, ticksBetween < maxReadingTicks
}

// measure updates tickLength with a new reading. If the processor's tick rate has changed, the
// measurement starts again with r.
func (c *clock) measure(r clockReading) {
	latest := r.since(c.latestReading)
	hasTickLength := c.maxTicksUntilReading > 0
	maxDeviation := latest.elapsed/1024 + 10_000 // ns
	rateHasChanged := hasTickLength &&
		absDiff(c.nanoseconds(latest.ticks), latest.elapsed) > maxDeviation
	isFirst := c.firstReading.ticks == 0
	if isFirst || rateHasChanged {
		c.firstReading = r
		c.maxTicksUntilReading = 0
	}

	c.latestReading = r
	total := r.since(c.firstReading)
	if total.elapsed < minMeasuredTime || total.ticks == 0 {
		return
	}

	if total.elapsed>>32 < total.ticks { // otherwise, the quotient has more than 64 bits
		c.tickLength = shiftAndDivide(total.elapsed, total.ticks)
		c.maxTicksUntilReading = shiftAndDivide(maxTimeUntilReading, max(c.tickLength, 1))
	}
}

// since returns the ticks and the time between an earlier reading and r.
func (r clockReading) since(earlier clockReading) clockReading {
	return clockReading{ticks: r.ticks - earlier.ticks, elapsed: r.elapsed - earlier.elapsed}
}

// shiftAndDivide returns v*2^32/divisor. It panics if the result has more than 64 bits.
func shiftAndDivide(v, divisor uint64) uint64 {
	quotient, _ := bits.Div64(v>>32, v<<32, divisor)
	return quotient
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
