package trace

import (
	"math/bits"
	"time"

	"symmem/internal/spin"
)

// clock measures the time since the start of a trace. Reading the processor's tick counter (rdtsc)
// is three times as fast as reading the system clock. Once clock has measured the length of a tick,
// it reads the system clock only every 1 ms.
//
// A clock is not safe for concurrent use.
type clock struct {
	start                       time.Time // of the trace
	firstReading, latestReading clockReading

	tickLength           uint64 // in units of 2^-32 ns
	maxTicksUntilReading uint64 // after latestReading; if 0, now always reads both clocks
}

// clockReading is the tick counter and the system clock at about the same moment.
type clockReading struct {
	ticks   uint64
	elapsed uint64 // nanoseconds since the start of the trace
}

// now returns the nanoseconds since the start. It may be a few us before an earlier result.
func (c *clock) now() uint64 {
	ticks := spin.Ticks() - c.latestReading.ticks
	if ticks >= c.maxTicksUntilReading {
		return c.nowFromSystemClock()
	}

	return c.latestReading.elapsed + c.nanoseconds(ticks)
}

// nanoseconds returns ticks*tickLength/2^32, modulo 2^64.
func (c *clock) nanoseconds(ticks uint64) uint64 {
	high, low := bits.Mul64(ticks, c.tickLength)
	return high<<32 | low>>32
}

func (c *clock) nowFromSystemClock() uint64 {
	r, isPrecise := c.readBothClocks()
	if isPrecise {
		c.addReading(r)
	} else {
		c.maxTicksUntilReading = 0
	}

	return r.elapsed
}

const (
	minMeasuredTime       = uint64(5 * time.Millisecond) // for the tick length, in nanoseconds
	maxTicksBetweenClocks = 5000                         // 5 us at 1 GHz
)

// readBothClocks returns an imprecise reading if it is interrupted between the clocks.
func (c *clock) readBothClocks() (r clockReading, isPrecise bool) {
	r.ticks = spin.Ticks()
	r.elapsed = uint64(time.Since(c.start))
	ticksBetween := spin.Ticks() - r.ticks
	return r, ticksBetween < maxTicksBetweenClocks
}

// addReading makes r the latest reading and updates the tick length. It also makes r the first
// reading if the tick counter has jumped or changed its speed.
func (c *clock) addReading(r clockReading) {
	isFirst := c.firstReading.ticks == 0
	if isFirst || c.isUnexpected(r) {
		c.firstReading = r
		c.maxTicksUntilReading = 0
	}

	c.latestReading = r
	c.measureTickLength()
}

// isUnexpected reports whether the ticks since the latest reading contradict tickLength.
func (c *clock) isUnexpected(r clockReading) bool {
	usesTickLength := c.maxTicksUntilReading > 0
	if !usesTickLength {
		return false
	}

	passed := r.since(c.latestReading)
	expected := c.nanoseconds(passed.ticks)
	maxDeviation := passed.elapsed/1024 + 10_000 // about 0.1% plus 10 us
	return absDiff(expected, passed.elapsed) > maxDeviation
}

// measureTickLength sets tickLength from the first and the latest reading, if they are at least
// minMeasuredTime apart.
func (c *clock) measureTickLength() {
	passed := c.latestReading.since(c.firstReading)
	if passed.elapsed < minMeasuredTime || passed.ticks == 0 {
		return
	}

	canDivide := passed.elapsed>>32 < passed.ticks // otherwise, shift32AndDivide panics
	if canDivide {
		const maxTimeUntilReading = uint64(time.Millisecond)
		c.tickLength = shift32AndDivide(passed.elapsed, passed.ticks)
		c.maxTicksUntilReading = shift32AndDivide(maxTimeUntilReading, max(c.tickLength, 1))
	}
}

// since returns the difference between two readings.
func (r clockReading) since(earlier clockReading) clockReading {
	return clockReading{ticks: r.ticks - earlier.ticks, elapsed: r.elapsed - earlier.elapsed}
}

// shift32AndDivide returns v*2^32/divisor. It panics unless v/2^32 < divisor.
func shift32AndDivide(v, divisor uint64) uint64 {
	quotient, _ := bits.Div64(v>>32, v<<32, divisor)
	return quotient
}

func absDiff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
