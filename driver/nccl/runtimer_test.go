package nccl

import (
	"errors"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

const launchDelay = 300 * time.Millisecond

// timeSums times the second of three all-reduces, which the last rank launches late, and returns
// the reading of each rank's clock.
func (w *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	w.t.Helper()
	last := len(w.ranks) - 1
	var launching sync.WaitGroup
	launching.Add(last)
	readings := make([]driver.CallTimes, len(w.ranks))
	w.must(func(m *testRank) error {
		call := m.twoLevelCall(driver.AllReduce, driver.Float32, 1000)
		call.Path = path
		prepared, err := prepare(m.group, call)
		if err != nil {
			return err
		}
		var clock driver.CallTimer
		prepared.(driver.Timed).SetMeter(clock.Meter(4000))
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
		for start := time.Now(); clock.Read().Samples == 0; <-ticks.C {
			if time.Since(start) > time.Minute {
				return failuref("rank %d: no call is timed", m.rank)
			}
		}
		readings[m.rank] = clock.Read()
		return nil
	})
	return readings
}

// TestRunsAreTimed checks on each path that the measured time includes the wait for a late rank.
func TestRunsAreTimed(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.must(func(m *testRank) error {
		m.group.SetCheck(false) // otherwise ranks wait before the launch
		return nil
	})
	for _, path := range []driver.Path{driver.PathPlain, driver.PathTwoLevel} {
		readings := w.timeSums(path)
		for rank, r := range readings {
			isInTime := rank == 3 || r.Time >= launchDelay/3
			if r.Calls != 3 || r.Bytes != 12000 || r.Samples != 1 || r.Time <= 0 || !isInTime {
				t.Errorf("path %v: clock of rank %d = %+v; want 3 calls, and one sample of at "+
					"least %v on ranks other than 3", path, rank, r, launchDelay/3)
			}
		}
	}
}

// TestTimesWithoutRoomAreSkipped starts to time more calls than there are samples.
func TestTimesWithoutRoomAreSkipped(t *testing.T) {
	w := newTestGroup(t, 1, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		var clocks [len(c.runTimer.samples) + 1]driver.CallTimer
		var started []*runSample
		for i := range clocks {
			meter := clocks[i].Meter(1)
			for range 2 { // the second call is timed
				if s := c.runTimer.startSteps(&c.mu, &meter, m.stream.(*stream.Stream)); s != nil {
					started = append(started, s)
				}
			}
		}
		if len(started) != len(clocks)-1 {
			return failuref("%d calls are timed; want %d", len(started), len(clocks)-1)
		}
		for _, s := range started {
			c.runTimer.stopSteps(&c.mu, s, m.stream.(*stream.Stream))
		}
		if err := m.stream.Synchronize(t.Context()); err != nil {
			return err
		}
		c.runTimer.collectUnlessBusy(&c.mu)
		if n := c.runTimer.unfinishedCount.Load(); n != 0 {
			return failuref("%d samples are in use after the calls; want none", n)
		}
		return nil
	})
}
