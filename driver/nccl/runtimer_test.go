package nccl

import (
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// The calls of timeSums.
const (
	timedCalls = 3 // of which a CallTimer times only the second
	timedCount = 1000
	timedBytes = 4 * timedCount // of float32, in a call
	// launchDelay is how late the last rank launches the second call.
	launchDelay = 300 * time.Millisecond
)

// timeSums launches timedCalls all-reduces on the given path, and returns the readings of a
// CallTimer on each rank. The last rank launches the second call launchDelay after the other ranks.
func (w *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	w.t.Helper()
	last := len(w.ranks) - 1
	var launching sync.WaitGroup // ranks before the last that have not launched the second call
	launching.Add(last)
	readings := make([]driver.CallTimes, len(w.ranks)) // by rank
	w.must(func(m *testRank) error {
		call := m.twoLevelCall(driver.AllReduce, driver.Float32, timedCount)
		call.Path = path
		prepared, err := prepare(m.group, call)
		if err != nil {
			return err
		}

		var timer driver.CallTimer
		prepared.(driver.Timed).SetMeter(timer.Meter(timedBytes))
		for i := range timedCalls {
			isTimed := i == 1
			if isTimed && m.rank == last {
				launching.Wait()
				<-time.After(launchDelay)
			}

			err := m.group.Launch(m.stream, prepared)
			if isTimed && m.rank != last {
				launching.Done()
			}

			if err != nil {
				return err
			}

			if err := m.stream.Synchronize(w.t.Context()); err != nil {
				return err
			}
		}

		// The watcher, a goroutine of the group, collects the sample later.
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		for start := time.Now(); timer.Read().Samples == 0; <-ticks.C {
			if time.Since(start) > time.Minute {
				return failuref("rank %d: no call was timed within a minute", m.rank)
			}
		}

		readings[m.rank] = timer.Read()
		return nil
	})
	return readings
}

// TestRunsAreTimed checks on each path that the measured time includes the wait for a late rank.
func TestRunsAreTimed(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		m.group.SetCheck(false) // otherwise ranks wait for each other before they launch a call
		return nil
	})
	for _, path := range []driver.Path{driver.PathPlain, driver.PathTwoLevel} {
		for rank, r := range w.timeSums(path) {
			const allBytes = timedCalls * timedBytes
			if r.Calls != timedCalls || r.Bytes != allBytes {
				t.Errorf("path %v, rank %d: got %+v, want %d calls of %d bytes in all", path, rank, r,
					timedCalls, allBytes)
			}

			if r.Samples != 1 || r.Time <= 0 {
				t.Errorf("path %v, rank %d: got %+v, want one sample with a duration", path, rank, r)
			}

			const lateRank = 3              // does not wait for other ranks
			const minWait = launchDelay / 3 // the kernels of other ranks may start later, too
			if rank != lateRank && r.Time < minWait {
				t.Errorf("path %v, rank %d: the call took %v, want at least %v", path, rank, r.Time,
					minWait)
			}
		}
	}
}

// TestTimesWithoutRoomAreSkipped starts to time more calls than a runTimer has samples. The last
// call must not be timed, and all samples must be unused after the calls.
func TestTimesWithoutRoomAreSkipped(t *testing.T) {
	w := newTestGroup(t, 1, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		var timers [len(c.runTimer.samples) + 1]driver.CallTimer
		var started []*runSample
		for i := range timers {
			const bytes = 1 // of a call; any number
			meter := timers[i].Meter(bytes)
			for range 2 { // a CallTimer times the second call, not the first
				if s := c.runTimer.startSteps(&c.mu, &meter, m.stream.(*stream.Stream)); s != nil {
					started = append(started, s)
				}
			}
		}

		if len(started) != len(c.runTimer.samples) {
			return failuref("%d calls are timed, want %d", len(started), len(c.runTimer.samples))
		}

		for _, s := range started {
			c.runTimer.stopSteps(&c.mu, s, m.stream.(*stream.Stream))
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
