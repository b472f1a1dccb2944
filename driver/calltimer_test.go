package driver

import (
	"sync"
	"testing"
	"time"
)

func TestCallTimerTimesSomeCalls(t *testing.T) {
	const smallBytes = 100 // less than alwaysTimedBytes
	const callsWithBegin, callsWithCount = 299, 1
	const calls = callsWithBegin + callsWithCount
	var c CallTimer
	m := c.Meter(smallBytes)
	for range callsWithBegin {
		m.End(m.Begin())
	}

	for range callsWithCount {
		m.Count()
	}

	r := c.Read()
	if r.Calls != calls || r.Bytes != calls*smallBytes {
		t.Errorf("Read = %d calls of %d bytes in total; want %d calls of %d bytes each", r.Calls,
			r.Bytes, calls, smallBytes)
	}

	timedCalls := []int{1, 129, 257}
	if r.Samples != uint64(len(timedCalls)) {
		t.Errorf("%d calls were timed; want the calls %v", r.Samples, timedCalls)
	}

	if r.RecentBytes != smallBytes {
		t.Errorf("the average size of timed calls is %d bytes; want %d", r.RecentBytes, smallBytes)
	}
}

func TestCallTimerTimesLargeCalls(t *testing.T) {
	const calls = 10
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	for range calls {
		begin := m.Begin()
		m.End(begin - int64(time.Millisecond)) // as if the call took a millisecond
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

func TestRecentTimeFollowsCalls(t *testing.T) {
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	m.Add(time.Hour)
	// averagedSamples calls more than halve the average, so that less than 1/2^20 of the hour remains.
	const halvings = 20
	for range halvings * averagedSamples {
		m.Add(0)
	}

	if r := c.Read(); r.RecentTime > time.Second {
		t.Errorf("RecentTime = %v after many calls without duration; want at most 1s", r.RecentTime)
	}
}

func TestZeroMeterIgnoresCalls(t *testing.T) {
	var m Meter
	m.Count()
	begin := m.Begin()
	if begin != 0 {
		t.Errorf("Begin = %d; want 0, because the call is not timed", begin)
	}

	m.End(begin)
}

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

func BenchmarkMeter(b *testing.B) {
	const smallBytes = 64
	var c CallTimer
	for name, m := range map[string]Meter{
		"off":   {},
		"small": c.Meter(smallBytes), // rarely timed
		"large": c.Meter(alwaysTimedBytes),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.End(m.Begin())
			}
		})
	}
}
