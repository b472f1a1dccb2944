package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock returns the time since the start of a trace, in nanoseconds. It mostly reads the
// processor's tick counter, because that is three times as fast as reading the system's clock.
//
//   - A reading has the tick counter and the system's clock at the same moment. Suppose that the
//     first reading is 1,000 ticks at 0 ns, and that the latest one is 20,001,000 ticks at
//     10,000,000 ns. So the length of a tick is 0.5 ns.
//   - If the tick counter is now 20,003,000, another 2,000 ticks have passed since the latest
//     reading. The time is 10,000,000 ns + 2,000*0.5 ns = 10,001,000 ns.
//   - In a call at least 1 ms after the latest reading, now makes another one.
//   - The tick length is unknown until 5 ms have passed since the first reading. Until then, each
//     call of now makes a reading.
//
// A clock is not safe for concurrent use.
type clock struct {
	start                       time.Time // of the trace
	firstReading, latestReading clockReading

	// tickLength is in units of 2^-32 ns, because a tick can be shorter than 1 ns.
	tickLength uint64
	// maxTicksUntilReading is the number of ticks from the latest reading to the next one. It is 0
	// while the next call of now must make a reading.
	maxTicksUntilReading uint64
}

// clockReading is a reading of the tick counter and the system's clock.
type clockReading struct {
	ticks   uint64
	elapsed uint64 // nanoseconds since the start of the trace
}

// now returns the time since the start in nanoseconds. It can be a few microseconds less than the
// result of the previous call.
func (c *clock) now() uint64 {
	ticks := spin.Ticks() - c.latestReading.ticks
	if ticks >= c.maxTicksUntilReading {
		return c.readSystemClock()
	}

	return c.latestReading.elapsed + c.nanoseconds(ticks)
}

// nanoseconds returns the time that a number of ticks takes: ticks*tickLength/2^32.
func (c *clock) nanoseconds(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tickLength) // the product has up to 128 bits
	return high<<32 | low>>32
}

// readSystemClock makes a reading, and returns its time since the start in nanoseconds.
func (c *clock) readSystemClock() uint64 {
	r, isPrecise := c.readBothClocks()
	if isPrecise {
		c.addReading(r)
	} else {
		c.maxTicksUntilReading = 0 // so the next call of now makes a reading
	}

	return r.elapsed
}

// maxTicksBetweenClocks limits the ticks between the two parts of a precise reading. They last at
// most 5 us if the tick counter runs at 1 GHz or faster. This is 0.1% of minMeasuredTime, so the
// tick length is at most 0.1% wrong. In the 1 ms until the next reading, this adds up to 1 us.
const maxTicksBetweenClocks = 5000

// readBothClocks reads the tick counter, and then the system's clock. isPrecise is false if the
// thread was interrupted in between.
func (c *clock) readBothClocks() (r clockReading, isPrecise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	ticksBetween := spin.Ticks() - r.ticks
	return r, ticksBetween < maxTicksBetweenClocks
}

// addReading makes r the latest reading, and measures the tick length again. If the tick counter
// has jumped or changed its speed, r also becomes the first reading.
func (c *clock) addReading(r clockReading) {
	isFirst := c.firstReading.ticks == 0
	if isFirst || c.isUnexpected(r) {
		c.firstReading = r
		c.maxTicksUntilReading = 0
	}

	c.latestReading = r
	c.measureTickLength()
}

// isUnexpected reports whether tickLength does not fit the ticks between the latest reading and r.
func (c *clock) isUnexpected(r clockReading) bool {
	hasTickLength := c.maxTicksUntilReading > 0
	if !hasTickLength {
		return false
	}

	passed := r.since(c.latestReading)
	expected := c.nanoseconds(passed.ticks)
	maxDeviation := passed.elapsed/1024 + 10_000 // about 0.1%, and 10 us
	return absDiff(expected, passed.elapsed) > maxDeviation
}

// Times in nanoseconds.
const (
	minMeasuredTime     = uint64(5 * time.Millisecond) // the shortest time to measure tickLength
	maxTimeUntilReading = uint64(time.Millisecond)     // from a reading to the next one
)

// measureTickLength sets tickLength and maxTicksUntilReading, if enough time has passed between the
// first and the latest reading.
func (c *clock) measureTickLength() {
	passed := c.latestReading.since(c.firstReading)
	if passed.elapsed < minMeasuredTime || passed.ticks == 0 {
		return
	}

	fitsTickLength := passed.elapsed>>32 < passed.ticks // otherwise, it would need over 64 bits
	if fitsTickLength {
		c.tickLength = shiftAndDivide(passed.elapsed, passed.ticks)
		c.maxTicksUntilReading = shiftAndDivide(maxTimeUntilReading, max(c.tickLength, 1))
	}
}

// since returns the ticks and the time that passed between an earlier reading and r.
func (r clockReading) since(earlier clockReading) clockReading {
	return clockReading{ticks: r.ticks - earlier.ticks, elapsed: r.elapsed - earlier.elapsed}
}

// shiftAndDivide returns v*2^32/divisor. It panics if the result needs more than 64 bits.
func shiftAndDivide(v, divisor uint64) uint64 {
	quotient, _ := bits.Div64(v>>32, v<<32, divisor)
	return quotient
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
