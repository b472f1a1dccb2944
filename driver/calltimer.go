package driver

import (
	"sync/atomic"
	"time"
)

// CallTimer counts calls of one kind. It times one in 128 calls, and each call of at least 1 MiB. A
// Meter reports the calls:
//
//	meter := timer.Meter(bytes)
//	start := meter.Begin() // counts the call
//	...
//	meter.End(start) // records the time of a timed call
//
// A caller that measures the time itself uses Sample and Add instead. A CallTimer is safe for
// concurrent use.
type CallTimer struct {
	calls, bytes atomic.Uint64 // number and total size of all calls
	samples      atomic.Uint64 // number of timed calls
	nanoseconds  atomic.Uint64 // total time of the timed calls
	// These are moving averages of timed calls, times averagedSamples to limit rounding errors.
	scaledNanoseconds, scaledBytes atomic.Uint64
}

const (
	callsPerSample   = 128     // a power of two, for a fast remainder
	alwaysTimedBytes = 1 << 20 // such calls take over 100 times as long as reading the clock twice
	averagedSamples  = 16      // the weight of a new sample in a moving average is 1/16
)

// CallTimes holds the values of a CallTimer.
type CallTimes struct {
	Calls, Bytes uint64        // number and total size of all calls
	Samples      uint64        // number of timed calls
	Time         time.Duration // total time of the timed calls
	RecentTime   time.Duration // moving average of the times of timed calls
	RecentBytes  int64         // moving average of the sizes of timed calls
}

// Read returns the current values.
func (c *CallTimer) Read() CallTimes {
	return CallTimes{
		Calls: c.calls.Load(), Bytes: c.bytes.Load(), Samples: c.samples.Load(),
		Time:        time.Duration(c.nanoseconds.Load()),
		RecentTime:  time.Duration(c.scaledNanoseconds.Load() / averagedSamples),
		RecentBytes: int64(c.scaledBytes.Load() / averagedSamples),
	}
}

// Meter reports calls of one size to a CallTimer. The zero Meter does nothing.
type Meter struct {
	timer       *CallTimer
	bytes       int64 // size of a call
	countsBytes bool  // false for a Meter from MeterWithoutBytes
}

// Meter returns a Meter for calls of the given size in bytes.
func (c *CallTimer) Meter(bytes int64) Meter {
	return Meter{timer: c, bytes: bytes, countsBytes: true}
}

// MeterWithoutBytes returns a Meter that does not add to CallTimes.Bytes, which is faster.
func (c *CallTimer) MeterWithoutBytes(bytes int64) Meter { return Meter{timer: c, bytes: bytes} }

// Count counts a call without timing it.
func (m *Meter) Count() {
	if m.timer != nil {
		m.countCall()
	}
}

// countCall counts a call and returns the number of calls so far.
func (m *Meter) countCall() uint64 {
	if m.countsBytes {
		m.timer.bytes.Add(uint64(m.bytes))
	}

	return m.timer.calls.Add(1)
}

// Begin counts a call, and returns a start time for End, or 0 if the call is not timed.
func (m *Meter) Begin() int64 {
	if m.timer == nil {
		return 0
	}

	return m.begin()
}

// processStart is the origin of the start times that Begin returns.
var processStart = time.Now()

// begin is a separate function, so that Begin is inlined.
func (m *Meter) begin() int64 {
	isSample := m.countCall()%callsPerSample == 1 // the first call, and every 128th after it
	if !isSample && m.bytes < alwaysTimedBytes {
		return 0
	}

	return int64(time.Since(processStart))
}

// End records the time of a call. start is the result of Begin.
func (m *Meter) End(start int64) {
	if start != 0 {
		m.end(start)
	}
}

// end is a separate function, so that End is inlined.
func (m *Meter) end(start int64) {
	now := int64(time.Since(processStart))
	m.Add(time.Duration(now - start))
}

// Sample counts a call, and reports whether the caller should time it and call Add. It selects one
// in 128 calls, whatever their size, but not the first call, which may load code.
func (m *Meter) Sample() bool {
	return m.timer != nil && m.countCall()%callsPerSample == 2
}

// Add records the time of a call. The Meter must not be zero.
func (m *Meter) Add(duration time.Duration) {
	timer := m.timer
	elapsed := uint64(max(0, duration))
	isFirst := timer.samples.Add(1) == 1
	timer.nanoseconds.Add(elapsed)
	updateAverage(&timer.scaledNanoseconds, elapsed, isFirst)
	updateAverage(&timer.scaledBytes, uint64(m.bytes), isFirst)
}

// updateAverage adds a value to a moving average. One of two concurrent updates may be lost.
func updateAverage(scaledAverage *atomic.Uint64, value uint64, isFirst bool) {
	if isFirst {
		scaledAverage.Store(value * averagedSamples)
		return
	}

	old := scaledAverage.Load()
	scaledAverage.Store(old - old/averagedSamples + value)
}
