package driver

import (
	"sync"
	"testing"
	"time"
)

func TestCallTimerTimesSomeCalls(t *testing.T) {
	var c CallTimer
	m := c.Meter(100)
	for range 300 {
		m.End(m.Begin())
	}
	m.Count()
	r := c.Read()
	if r.Calls != 301 || r.Bytes != 30100 || r.Samples != 3 || r.RecentBytes != 100 {
		t.Errorf("Read = %+v; want 301 calls of 100 bytes, with calls 1, 129 and 257 timed", r)
	}
}

func TestCallTimerTimesLargeCalls(t *testing.T) {
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	for range 10 {
		m.End(m.Begin() - int64(time.Millisecond)) // as if the call took a millisecond
	}
	r := c.Read()
	if r.Samples != 10 || r.Time < 10*time.Millisecond || r.RecentTime < time.Millisecond {
		t.Errorf("Read = %+v; want 10 samples of at least 1 ms", r)
	}
}

// TestRecentTimeFollowsCalls times one call of an hour and then enough short ones to outweigh it.
func TestRecentTimeFollowsCalls(t *testing.T) {
	var c CallTimer
	m := c.Meter(alwaysTimedBytes)
	now := func() int64 { return int64(time.Since(processStart)) }
	m.End(now() - int64(time.Hour))
	for range 20 * averagedSamples {
		m.End(now())
	}
	if r := c.Read(); r.RecentTime > time.Second {
		t.Errorf("RecentTime = %v after many short calls; want at most 1s", r.RecentTime)
	}
}

func TestZeroMeterIgnoresCalls(t *testing.T) {
	var m Meter
	m.Count()
	if begin := m.Begin(); begin != 0 {
		t.Errorf("Begin = %d; want 0", begin)
	}
	m.End(0)
}

func TestCallTimerIsSafeForConcurrentUse(t *testing.T) {
	var c CallTimer
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			m := c.Meter(alwaysTimedBytes)
			for range 1000 {
				m.End(m.Begin())
				c.Read()
			}
		})
	}
	callers.Wait()
	if r := c.Read(); r.Calls != 4000 || r.Samples != 4000 {
		t.Errorf("Read = %+v; want 4000 calls, all timed", r)
	}
}

func BenchmarkMeter(b *testing.B) {
	var c CallTimer
	for name, m := range map[string]Meter{
		"off": {}, "small": c.Meter(64), "large": c.Meter(alwaysTimedBytes),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m.End(m.Begin())
			}
		})
	}
}
