package nccl

import (
	"errors"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// launchDelay is how late the last rank launches the timed call of timeSums.
const launchDelay = 300 * time.Millisecond

// timeSums launches three all-reduces of 1000 elements on the given path, and returns the readings
// of a CallTimer on each rank. Each CallTimer times only the second call. The last rank launches
// that call launchDelay after the other ranks.
func (w *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	w.t.Helper()
	last := len(w.ranks) - 1
	var launching sync.WaitGroup // ranks before the last that have not launched the second call
	launching.Add(last)
	readings := make([]driver.CallTimes, len(w.ranks)) // by rank
	w.must(func(m *testRank) error {
		call := m.twoLevelCall(driver.AllReduce, driver.Float32, 1000)
		call.Path = path
		prepared, err := prepare(m.group, call)
		if err != nil {
			return err
		}
		var timer driver.CallTimer
		prepared.(driver.Timed).SetMeter(timer.Meter(4000)) // bytes of each call
		for i := range 3 {
			if i == 1 && m.rank == last {
				launching.Wait()
				<-time.After(launchDelay)
			}
			err := m.group.Launch(m.stream, prepared)
			if i == 1 && m.rank != last {
				launching.Done()
			}
			if err = errors.Join(err, m.stream.Synchronize(w.t.Context())); err != nil {
				return err
			}
		}
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
			if r.Calls != 3 || r.Bytes != 12000 || r.Samples != 1 || r.Time <= 0 {
				t.Errorf("path %v, rank %d: got %+v, want 3 calls of 12000 bytes in all, and one sample",
					path, rank, r)
			}
			const lateRank = 3 // does not wait for other ranks
			if rank != lateRank && r.Time < launchDelay/3 {
				t.Errorf("path %v, rank %d: the call took %v, want at least %v", path, rank, r.Time,
					launchDelay/3)
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
			meter := timers[i].Meter(1)
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
