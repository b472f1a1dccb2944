package driver

import (
	"sync/atomic"
	"time"
)

// CallTimer counts calls of one kind and measures the time of some of them. A Meter reports the
// calls of one size to it:
//
//	meter := timer.Meter(bytes)
//	begin := meter.Begin() // counts a call
//	...
//	meter.End(begin) // adds the time of the call, if Begin has selected it
//
// Begin selects the first call, every 128th after it, and each call of at least 1 MiB. Instead of
// Begin and End, Sample and Add can be used. A CallTimer is safe for concurrent use.
type CallTimer struct {
	calls, bytes atomic.Uint64 // number and total size of all calls
	samples      atomic.Uint64 // number of timed calls
	nanoseconds  atomic.Uint64 // total time of the timed calls
	recentTime   atomic.Uint64 // moving average in nanoseconds, times averagedSamples
	recentBytes  atomic.Uint64 // moving average, times averagedSamples
}

const (
	// callsPerSample is 128 because one of 128 small calls is timed. With a power of two, the compiler
	// replaces the division by a mask.
	callsPerSample = 128
	// alwaysTimedBytes is the size from which all calls are timed. Reading the clock twice takes
	// less than 1% of the time of such a call.
	alwaysTimedBytes = 1 << 20
	// averagedSamples is the inverse of the weight of a new value in a moving average.
	averagedSamples = 16
)

// Meter reports calls of one size to a CallTimer. The zero Meter does nothing.
type Meter struct {
	timer      *CallTimer
	bytes      int64
	countBytes bool // whether calls add bytes to CallTimer.bytes
}

// Meter returns a Meter for calls of the given size in bytes.
func (c *CallTimer) Meter(bytes int64) Meter {
	return Meter{timer: c, bytes: bytes, countBytes: true}
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
	if m.countBytes {
		m.timer.bytes.Add(uint64(m.bytes))
	}

	return m.timer.calls.Add(1)
}

// Begin counts a call. It returns a start time for End, or 0 if the call is not timed.
func (m *Meter) Begin() int64 {
	if m.timer == nil {
		return 0
	}

	return m.begin()
}

// processStart is the origin of the start times that Begin returns.
var processStart = time.Now()

// begin is Begin with a CallTimer. It is a separate method, so that Begin can be inlined.
func (m *Meter) begin() int64 {
	isSample := m.countCall()%callsPerSample == 1 // the first call, and every 128th after it
	if !isSample && m.bytes < alwaysTimedBytes {
		return 0
	}

	return int64(time.Since(processStart))
}

// End records the time of a call. begin is the result of Begin.
func (m *Meter) End(begin int64) {
	if begin != 0 {
		m.end(begin)
	}
}

// end is End for a call that is timed. It is a separate method, so that End can be inlined.
func (m *Meter) end(begin int64) {
	end := int64(time.Since(processStart))
	m.Add(time.Duration(end - begin))
}

// Sample counts a call, and then reports whether the caller should pass the call's time to Add. It
// returns true for the second call and for every 128th after it. It omits the first call, which may
// load code.
func (m *Meter) Sample() bool {
	return m.timer != nil && m.countCall()%callsPerSample == 2
}

// Add records the time that a call took. The Meter must have a CallTimer.
func (m *Meter) Add(duration time.Duration) {
	c := m.timer
	elapsed := uint64(max(0, duration))
	isFirst := c.samples.Add(1) == 1
	c.nanoseconds.Add(elapsed)
	updateAverage(&c.recentTime, elapsed, isFirst)
	updateAverage(&c.recentBytes, uint64(m.bytes), isFirst)
}

// updateAverage adds a value to a moving average. The new average is 15/16 of the old one plus 1/16
// of the value. The first value becomes the average.
//
// scaledAverage holds the average times averagedSamples (16), so that the division loses little. If
// two calls add values at the same time, one value may be lost.
func updateAverage(scaledAverage *atomic.Uint64, value uint64, isFirst bool) {
	old := scaledAverage.Load()
	if isFirst {
		old = value * averagedSamples
	}

	scaledAverage.Store(old - old/averagedSamples + value)
}

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
		RecentTime:  time.Duration(c.recentTime.Load() / averagedSamples),
		RecentBytes: int64(c.recentBytes.Load() / averagedSamples),
	}
}
