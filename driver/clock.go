package driver

import (
	"sync/atomic"
	"time"
)

const (
	callsPerSample = 128 // a power of two
	// alwaysTimedBytes is the size from which all calls are timed. Reading the clock twice takes
	// less than 1% of the time of such a call.
	alwaysTimedBytes = 1 << 20
	averagedSamples  = 16 // in moving averages
)

// CallTimer counts calls of one kind and measures the time of some: the first, every 128th after
// it, and each of at least 1 MiB. It is safe for concurrent use.
type CallTimer struct {
	calls, bytes atomic.Uint64 // of all calls
	samples      atomic.Uint64 // number of timed calls
	nanoseconds  atomic.Uint64 // total time of the timed calls
	recentTime   atomic.Uint64 // moving average in nanoseconds, times averagedSamples
	recentBytes  atomic.Uint64 // moving average, times averagedSamples
}

var processStart = time.Now()

// Meter reports calls of one size to a CallTimer. The zero Meter does nothing.
type Meter struct {
	timer      *CallTimer
	bytes      int64
	addToTotal bool // whether calls add bytes to CallTimer.bytes
}

// Meter returns a Meter for calls of the given size in bytes.
func (c *CallTimer) Meter(bytes int64) Meter {
	return Meter{timer: c, bytes: bytes, addToTotal: true}
}

// MeterWithoutBytes returns a Meter that does not add to CallTimes.Bytes, which is faster.
func (c *CallTimer) MeterWithoutBytes(bytes int64) Meter { return Meter{timer: c, bytes: bytes} }

// Count counts a call without timing it.
func (m *Meter) Count() {
	if m.timer != nil {
		m.countCall()
	}
}

func (m *Meter) countCall() uint64 {
	if m.addToTotal {
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

func (m *Meter) begin() int64 {
	if m.countCall()&(callsPerSample-1) != 1 && m.bytes < alwaysTimedBytes {
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

func (m *Meter) end(begin int64) {
	m.Add(time.Duration(int64(time.Since(processStart)) - begin))
}

// Sample counts a call, and reports whether the caller should pass the call's time to Add. It
// returns true for the second call, because the first may load code, and for every 128th after it.
func (m *Meter) Sample() bool {
	return m.timer != nil && m.countCall()&(callsPerSample-1) == 2
}

// Add records the time that a call took.
func (m *Meter) Add(duration time.Duration) {
	c := m.timer
	elapsed := uint64(max(0, duration))
	isFirst := c.samples.Add(1) == 1
	c.nanoseconds.Add(elapsed)
	updateAverage(&c.recentTime, elapsed, isFirst)
	updateAverage(&c.recentBytes, uint64(m.bytes), isFirst)
}

func updateAverage(recent *atomic.Uint64, value uint64, isFirst bool) {
	oldAverage := recent.Load()
	if isFirst {
		oldAverage = value * averagedSamples
	}
	recent.Store(oldAverage - oldAverage/averagedSamples + value)
}

// CallTimes holds the values of a CallTimer.
type CallTimes struct {
	Calls, Bytes uint64
	// Samples is the number of timed calls, and Time is their total time. RecentTime and RecentBytes
	// are moving averages of the time and the size of timed calls.
	Samples     uint64
	Time        time.Duration
	RecentTime  time.Duration
	RecentBytes int64
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
