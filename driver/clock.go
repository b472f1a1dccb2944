package driver

import (
	"sync/atomic"
	"time"
)

const (
	callsPerSample = 128 // a power of two
	// Every call of at least alwaysTimedBytes is timed. Reading the clock twice takes less than 1%
	// of the time of such a call.
	alwaysTimedBytes = 1 << 20
	averagedSamples  = 16 // number of samples in the moving averages
)

// Clock counts calls of one kind, and times some of them. Meter.Begin times the first call, every
// 128th call after it, and each call of at least 1 MiB. Meter.Sample selects calls that the caller
// times. A Clock is safe for concurrent use, but the moving averages may miss samples that end at
// the same time.
type Clock struct {
	calls, bytes atomic.Uint64
	samples      atomic.Uint64
	nanoseconds  atomic.Uint64
	recentTime   atomic.Uint64 // moving average in nanoseconds, multiplied by averagedSamples
	recentBytes  atomic.Uint64 // moving average, multiplied by averagedSamples
}

var processStart = time.Now()

// Meter reports calls of one size to a Clock. The zero Meter does nothing. A Meter can be copied.
type Meter struct {
	clock     *Clock
	bytes     int64
	addsBytes bool // whether Clock.bytes includes the calls
}

// Meter returns a Meter for calls of the given size in bytes.
func (c *Clock) Meter(bytes int64) Meter { return Meter{clock: c, bytes: bytes, addsBytes: true} }

// MeterWithoutSum returns a faster Meter. ClockReading.Bytes does not include its calls.
func (c *Clock) MeterWithoutSum(bytes int64) Meter { return Meter{clock: c, bytes: bytes} }

// Count counts a call without timing it.
func (m *Meter) Count() {
	if m.clock != nil {
		m.countCall()
	}
}

// countCall counts a call and returns the number of calls so far.
func (m *Meter) countCall() uint64 {
	if m.addsBytes {
		m.clock.bytes.Add(uint64(m.bytes))
	}
	return m.clock.calls.Add(1)
}

// Begin counts a call and returns the time at which it began, or 0 if the call is not timed.
func (m *Meter) Begin() int64 {
	if m.clock == nil {
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

// End records the end of a call that began at begin.
func (m *Meter) End(begin int64) {
	if begin != 0 {
		m.end(begin)
	}
}

func (m *Meter) end(begin int64) {
	m.Add(time.Duration(int64(time.Since(processStart)) - begin))
}

// Sample counts a call, and reports whether the caller should time the call and pass the time to
// Add. Sample selects the second call, because the first one may load code, and every 128th call
// after it.
func (m *Meter) Sample() bool {
	return m.clock != nil && m.countCall()&(callsPerSample-1) == 2
}

// Add records the time that a call took.
func (m *Meter) Add(duration time.Duration) {
	c := m.clock
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

// ClockReading holds the values of a Clock. RecentTime and RecentBytes are averages of about 16
// samples.
type ClockReading struct {
	Calls, Bytes uint64
	// Samples counts the timed calls, and Time is their total time.
	Samples     uint64
	Time        time.Duration
	RecentTime  time.Duration
	RecentBytes int64
}

// Read returns the current values. During a call, some values can include the call while others do
// not.
func (c *Clock) Read() ClockReading {
	return ClockReading{
		Calls: c.calls.Load(), Bytes: c.bytes.Load(), Samples: c.samples.Load(),
		Time:        time.Duration(c.nanoseconds.Load()),
		RecentTime:  time.Duration(c.recentTime.Load() / averagedSamples),
		RecentBytes: int64(c.recentBytes.Load() / averagedSamples),
	}
}
