package driver

import (
	"sync"
	"testing"
	"time"
)

// TestCallTimerTimesSomeCalls makes small calls. All must be counted, but only one in
// callsPerSample (128) must be timed, because reading the clock would slow them down.
func TestCallTimerTimesSomeCalls(t *testing.T) {
	const bytes, calls = 100, 300
	var c CallTimer
	m := c.Meter(bytes)
	for range calls {
		m.End(m.Begin())
	}

	m.Count() // counts one more call, which is not timed
	r := c.Read()
	if r.Calls != calls+1 || r.Bytes != bytes*(calls+1) {
		t.Errorf("Read = %d calls of %d bytes in total; want %d calls of %d bytes each", r.Calls,
			r.Bytes, calls+1, bytes)
	}

	if r.Samples != 3 {
		t.Errorf("%d calls were timed; want 3, which are calls 1, 129 and 257", r.Samples)
	}

	if r.RecentBytes != bytes {
		t.Errorf("the average size of timed calls is %d bytes; want %d", r.RecentBytes, bytes)
	}
}

// TestCallTimerTimesLargeCalls makes calls of the size from which all calls are timed.
func TestCallTimerTimesLargeCalls(t *testing.T) {
	const calls = 10
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	for range calls {
		begin := m.Begin() - int64(time.Millisecond) // as if the call took a millisecond
		m.End(begin)
	}

	r := c.Read()
	if r.Samples != calls {
		t.Errorf("%d calls were timed; want all %d", r.Samples, calls)
	}

	if r.Time < calls*time.Millisecond || r.RecentTime < time.Millisecond {
		t.Errorf("the calls took %v in total and %v on average; want at least 1ms each", r.Time,
			r.RecentTime)
	}
}

// TestRecentTimeFollowsCalls times one call of an hour and then enough short ones to outweigh it.
func TestRecentTimeFollowsCalls(t *testing.T) {
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	now := func() int64 { return int64(time.Since(processStart)) }
	m.End(now() - int64(time.Hour))
	// Each call removes 1/averagedSamples of the old average. After n*averagedSamples calls, less
	// than 1/2^n of the hour remains.
	for range 20 * averagedSamples {
		m.End(now())
	}

	if r := c.Read(); r.RecentTime > time.Second {
		t.Errorf("RecentTime = %v after many short calls; want at most 1s", r.RecentTime)
	}
}

// TestZeroMeterIgnoresCalls uses a Meter without a CallTimer. It must not panic.
func TestZeroMeterIgnoresCalls(t *testing.T) {
	var m Meter
	m.Count()
	begin := m.Begin()
	if begin != 0 {
		t.Errorf("Begin = %d; want 0, because the call is not timed", begin)
	}

	m.End(begin)
}

// TestCallTimerIsSafeForConcurrentUse times and reads calls in several goroutines. No call may be
// missing afterwards, and the race detector must find no race.
func TestCallTimerIsSafeForConcurrentUse(t *testing.T) {
	const goroutines, callsPerGoroutine = 4, 1000
	var c CallTimer
	var callers sync.WaitGroup
	for range goroutines {
		callers.Go(func() {
			m := c.Meter(alwaysTimedBytes)
			for range callsPerGoroutine {
				m.End(m.Begin())
				c.Read()
			}
		})
	}

	callers.Wait()
	const want = goroutines * callsPerGoroutine
	if r := c.Read(); r.Calls != want || r.Samples != want {
		t.Errorf("Read = %d calls, %d of them timed; want %d, all timed", r.Calls, r.Samples, want)
	}
}

// BenchmarkMeter measures how much time a Meter adds to a call: without a timer, for a small call,
// which is rarely timed, and for a large call, which is always timed.
func BenchmarkMeter(b *testing.B) {
	const smallBytes = 64
	var c CallTimer
	for name, m := range map[string]Meter{
		"off":   {},
		"small": c.Meter(smallBytes),
		"large": c.Meter(alwaysTimedBytes),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.End(m.Begin())
			}
		})
	}
}
