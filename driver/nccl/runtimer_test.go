package nccl

import (
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// A CallTimer counts calls, and measures how long some of them take on the GPU. A measured call
// gives it a sample. For example, four ranks launch three all-reduces, and the timer of a rank
// measures only the second. Rank 3 launches it 300 ms late. The other ranks wait for rank 3, so
// that their samples are about 300 ms.

const (
	summedCalls = 3
	timedCall   = 1 // index of the call that a CallTimer measures
	sumCount    = 1000
	sumBytes    = 4 * sumCount // of float32

	// launchDelay is how late the last rank launches timedCall.
	launchDelay = 300 * time.Millisecond
)

// timeSums launches summedCalls all-reduces on the given path. The last rank launches timedCall
// launchDelay after the other ranks. It returns the reading of a CallTimer of each rank.
func (w *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	w.t.Helper()
	last := len(w.ranks) - 1
	var launching sync.WaitGroup // ranks before the last that have not launched timedCall
	launching.Add(last)
	readings := make([]driver.CallTimes, len(w.ranks)) // by rank
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

// awaitSample waits until the timer has a sample, and returns its reading. The watcher, a goroutine
// of the group, collects samples some time after the calls.
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

// TestRunsAreTimed checks on each path that the measured time includes the wait for a late rank.
func TestRunsAreTimed(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		m.group.SetCheck(false) // otherwise ranks wait for each other before they launch a call
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

			const lateRank = 3 // does not wait for other ranks
			// The kernels of the other ranks may start late, too, so their waits may be shorter.
			const minWait = launchDelay / 3
			if rank != lateRank && r.Time < minWait {
				t.Errorf("path %v, rank %d: the call took %v, want at least %v", path, rank, r.Time,
					minWait)
			}
		}
	}
}

// TestTimesWithoutRoomAreSkipped starts to measure more calls at the same time than the group's
// runTimer has room for. The last call must not be measured, and all room must be free at the end.
func TestTimesWithoutRoomAreSkipped(t *testing.T) {
	w := newTestGroup(t, 1, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		var timers [len(c.runTimer.samples) + 1]driver.CallTimer
		var started []*runSample
		timedStream := m.stream.(*stream.Stream)
		for i := range timers {
			const bytes = 1 // of a call; any number
			meter := timers[i].Meter(bytes)
			for range 2 { // a CallTimer measures the second call, not the first
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
