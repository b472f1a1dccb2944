package driver

import (
	"sync/atomic"
	"time"
)

// CallTimer counts calls of one kind, and times each call of at least 1 MiB and one in 128 smaller
// calls. Calls are reported through a Meter:
//
//	meter := timer.Meter(bytes)
//	begin := meter.Begin() // counts the call
//	...
//	meter.End(begin) // adds the time of the call if it is timed
//
// A caller that measures the time itself uses Sample and Add instead. A CallTimer is safe for
// concurrent use.
type CallTimer struct {
	calls, bytes atomic.Uint64 // number and total size of all calls
	samples      atomic.Uint64 // number of timed calls
	nanoseconds  atomic.Uint64 // total time of the timed calls
	recentTime   atomic.Uint64 // moving average in nanoseconds, times averagedSamples
	recentBytes  atomic.Uint64 // moving average, times averagedSamples
}

const (
	callsPerSample = 128 // a power of two, so that the remainder is a mask
	// Reading the clock twice takes less than 1% of the time of a call of alwaysTimedBytes.
	alwaysTimedBytes = 1 << 20
	averagedSamples  = 16 // a new sample has the weight 1/16 in a moving average
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

// MeterWithoutBytes returns a faster Meter, whose calls do not count in CallTimes.Bytes.
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

// Begin counts a call, and returns a start time for End, or 0 if the call is not timed.
func (m *Meter) Begin() int64 {
	if m.timer == nil {
		return 0
	}

	return m.begin()
}

// processStart is the origin of the start times that Begin returns.
var processStart = time.Now()

// begin is the part of Begin that would prevent inlining.
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

// end is the part of End that would prevent inlining.
func (m *Meter) end(begin int64) {
	end := int64(time.Since(processStart))
	m.Add(time.Duration(end - begin))
}

// Sample counts a call, and reports whether the caller should time it and call Add. It selects the
// second call and every 128th after it, because the first call may spend time loading code.
func (m *Meter) Sample() bool {
	return m.timer != nil && m.countCall()%callsPerSample == 2
}

// Add records the time of a call. The Meter must not be zero.
func (m *Meter) Add(duration time.Duration) {
	c := m.timer
	elapsed := uint64(max(0, duration))
	isFirst := c.samples.Add(1) == 1
	c.nanoseconds.Add(elapsed)
	updateAverage(&c.recentTime, elapsed, isFirst)
	updateAverage(&c.recentBytes, uint64(m.bytes), isFirst)
}

// updateAverage adds a value to a moving average, which is stored times 16 to limit rounding
// errors. The new average is 15/16 of the old one plus 1/16 of the value. One of two concurrent
// updates may be lost.
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
