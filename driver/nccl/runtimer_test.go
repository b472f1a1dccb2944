package nccl

import (
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

const (
	summedCalls = 3
	timedCall   = 1 // index of the only call that a CallTimer samples
	sumCount    = 1000
	sumBytes    = 4 * sumCount // of float32
	launchDelay = 300 * time.Millisecond
)

// timeSums launches summedCalls all-reduces, and returns each rank's reading of a CallTimer, which
// samples the GPU time of timedCall. The last rank launches timedCall late, by launchDelay.
func (w *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	w.t.Helper()
	last := len(w.ranks) - 1
	var launching sync.WaitGroup // until the other ranks have launched timedCall
	launching.Add(last)
	readings := make([]driver.CallTimes, len(w.ranks))
	w.must(func(m *testRank) error {
		call := m.twoLevelCall(driver.AllReduce, driver.Float32, sumCount)
		call.Path = path
		prepared, err := prepare(m.group, call)
		if err != nil {
			return err
		}

		var timer driver.CallTimer
		prepared.(driver.Timed).SetMeter(timer.Meter(sumBytes))
		for i := range summedCalls {
			isLate := i == timedCall && m.rank == last
			if isLate {
				launching.Wait()
				<-time.After(launchDelay)
			}

			err := m.group.Launch(m.stream, prepared)
			if i == timedCall && !isLate {
				launching.Done()
			}

			if err != nil {
				return err
			}

			if err := m.stream.Synchronize(w.t.Context()); err != nil {
				return err
			}
		}

		readings[m.rank], err = m.awaitSample(&timer)
		return err
	})
	return readings
}

// awaitSample returns the timer's reading once a goroutine of the group has collected a sample.
func (m *testRank) awaitSample(timer *driver.CallTimer) (driver.CallTimes, error) {
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for start := time.Now(); timer.Read().Samples == 0; <-ticks.C {
		if time.Since(start) > time.Minute {
			return driver.CallTimes{}, failuref("rank %d: no call was timed within a minute", m.rank)
		}
	}

	return timer.Read(), nil
}

// The measured time of a call includes the wait for a late rank.
func TestRunsAreTimed(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		m.group.SetCheck(false) // otherwise launches wait for the late rank
		return nil
	})
	for _, path := range []driver.Path{driver.PathPlain, driver.PathTwoLevel} {
		for rank, r := range w.timeSums(path) {
			const allBytes = summedCalls * sumBytes
			if r.Calls != summedCalls || r.Bytes != allBytes {
				t.Errorf("path %v, rank %d: got %+v, want %d calls of %d bytes in all", path, rank, r,
					summedCalls, allBytes)
			}

			if r.Samples != 1 || r.Time <= 0 {
				t.Errorf("path %v, rank %d: got %+v, want one sample with a duration", path, rank, r)
			}

			const lateRank = 3
			// The kernels of the other ranks may start late, too.
			const minWait = launchDelay / 3
			if rank != lateRank && r.Time < minWait {
				t.Errorf("path %v, rank %d: the call took %v, want at least %v", path, rank, r.Time,
					minWait)
			}
		}
	}
}

// A runTimer has room for a fixed number of unfinished samples, and skips calls beyond it.
func TestTimesWithoutRoomAreSkipped(t *testing.T) {
	w := newTestGroup(t, 1, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		var timers [len(c.runTimer.samples) + 1]driver.CallTimer
		var started []*runSample
		timedStream := m.stream.(*stream.Stream)
		for i := range timers {
			const anySize = 1
			meter := timers[i].Meter(anySize)
			for range 2 { // a CallTimer skips its first call
				s := c.runTimer.startSteps(&c.mu, &meter, timedStream)
				if s != nil {
					started = append(started, s)
				}
			}
		}

		if len(started) != len(c.runTimer.samples) {
			return failuref("%d calls are timed, want %d", len(started), len(c.runTimer.samples))
		}

		for _, s := range started {
			c.runTimer.stopSteps(&c.mu, s, timedStream)
		}

		if err := m.stream.Synchronize(t.Context()); err != nil {
			return err
		}

		c.runTimer.collectUnlessBusy(&c.mu)
		if n := c.runTimer.unfinishedCount.Load(); n != 0 {
			return failuref("%d samples are in use after the calls, want none", n)
		}

		return nil
	})
}
