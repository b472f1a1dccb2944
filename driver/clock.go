package driver

import (
	"sync/atomic"
	"time"
)

const (
	sampleEvery = 128 // in calls; a power of two
	// Reading the clock twice takes less than 1% of the time of a call of alwaysTimed bytes.
	alwaysTimed   = 1 << 20
	recentSamples = 16 // in the moving averages
)

// Clock counts calls of one kind and times the first call, every 128th call after it, and each call
// of at least 1 MiB. A Clock is safe for concurrent use, but simultaneous samples may overwrite
// each other's part of the moving averages.
type Clock struct {
	calls, bytes atomic.Uint64
	samples      atomic.Uint64
	nanoseconds  atomic.Uint64
	recentTime   atomic.Uint64 // in nanoseconds, times recentSamples
	recentBytes  atomic.Uint64 // times recentSamples
}

var epoch = time.Now()

// Meter reports calls of one size to a Clock. The zero Meter does nothing. It may be copied.
type Meter struct {
	clock *Clock
	bytes int64
	sums  bool // whether bytes are added to Clock.bytes
}

// Meter returns a Meter for calls of the given size in bytes.
func (c *Clock) Meter(bytes int64) Meter { return Meter{clock: c, bytes: bytes, sums: true} }

// MeterWithoutSum returns a faster Meter, whose calls do not add to ClockReading.Bytes.
func (c *Clock) MeterWithoutSum(bytes int64) Meter { return Meter{clock: c, bytes: bytes} }

// Count counts a call without timing it.
func (m *Meter) Count() {
	if m.clock != nil {
		m.count()
	}
}

// count counts a call and returns the number of calls so far.
func (m *Meter) count() uint64 {
	if m.sums {
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
	if m.count()&(sampleEvery-1) != 1 && m.bytes < alwaysTimed {
		return 0
	}
	return int64(time.Since(epoch))
}

// End records the end of a call that began at begin.
func (m *Meter) End(begin int64) {
	if begin != 0 {
		m.end(begin)
	}
}

func (m *Meter) end(begin int64) {
	c := m.clock
	elapsed := uint64(max(0, int64(time.Since(epoch))-begin))
	first := c.samples.Add(1) == 1
	c.nanoseconds.Add(elapsed)
	average(&c.recentTime, elapsed, first)
	average(&c.recentBytes, uint64(m.bytes), first)
}

func average(recent *atomic.Uint64, value uint64, first bool) {
	old := recent.Load()
	if first {
		old = value * recentSamples
	}
	recent.Store(old - old/recentSamples + value)
}

// ClockReading holds the values of a Clock. The recent values are averages over about 16 samples.
type ClockReading struct {
	Calls, Bytes uint64
	// Samples counts the timed calls, and Time is their total time.
	Samples     uint64
	Time        time.Duration
	RecentTime  time.Duration
	RecentBytes int64
}

// Read returns the current values. Only some of them may include a call in progress.
func (c *Clock) Read() ClockReading {
	return ClockReading{
		Calls: c.calls.Load(), Bytes: c.bytes.Load(), Samples: c.samples.Load(),
		Time:        time.Duration(c.nanoseconds.Load()),
		RecentTime:  time.Duration(c.recentTime.Load() / recentSamples),
		RecentBytes: int64(c.recentBytes.Load() / recentSamples),
	}
}
