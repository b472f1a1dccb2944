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
	timedCall   = 1 // index of the only call that a driver.CallTimer samples
	sumCount    = 1000
	sumBytes    = 4 * sumCount // of float32
	lateRank    = 3            // of 4 ranks
	launchDelay = 300 * time.Millisecond
)

// timeSums launches several all-reduces and returns the reading of each rank's CallTimer. lateRank
// launches timedCall after all other ranks, with a further delay of launchDelay.
func (g *twoLevelGroup) timeSums(path driver.Path) []driver.CallTimes {
	g.t.Helper()
	var launched sync.WaitGroup // of the other ranks
	launched.Add(len(g.ranks) - 1)
	readings := make([]driver.CallTimes, len(g.ranks))
	g.must(func(r *testRank) error {
		call := r.twoLevelCall(driver.AllReduce, driver.Float32, sumCount)
		call.Path = path
		prepared, err := prepare(r.group, call)
		if err != nil {
			return err
		}

		var timer driver.CallTimer
		prepared.(driver.Timed).SetMeter(timer.Meter(sumBytes))
		for i := range summedCalls {
			if i == timedCall && r.rank == lateRank {
				launched.Wait()
				<-time.After(launchDelay)
			}

			err := r.group.Launch(r.stream, prepared)
			if i == timedCall && r.rank != lateRank {
				launched.Done()
			}

			if err != nil {
				return err
			}

			if err := r.stream.Synchronize(g.t.Context()); err != nil {
				return err
			}
		}

		readings[r.rank], err = r.awaitSample(&timer)
		return err
	})
	return readings
}

// awaitSample waits for the group to collect a sample, and returns the timer's reading.
func (r *testRank) awaitSample(timer *driver.CallTimer) (driver.CallTimes, error) {
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for start := time.Now(); timer.Read().Samples == 0; <-ticks.C {
		if time.Since(start) > time.Minute {
			return driver.CallTimes{}, failuref("rank %d: no call was timed within a minute", r.rank)
		}
	}

	return timer.Read(), nil
}

// The measured time of a call includes the wait for a late rank.
func TestRunsAreTimed(t *testing.T) {
	g := newTwoLevelGroup(t, 4)
	g.must(func(r *testRank) error {
		r.group.SetCheck(false) // otherwise launches wait for the late rank
		return nil
	})
	for _, path := range []driver.Path{driver.PathPlain, driver.PathTwoLevel} {
		for rank, times := range g.timeSums(path) {
			const allBytes = summedCalls * sumBytes
			if times.Calls != summedCalls || times.Bytes != allBytes {
				t.Errorf("path %v, rank %d: got %+v, want %d calls of %d bytes in all", path, rank, times,
					summedCalls, allBytes)
			}

			if times.Samples != 1 || times.Time <= 0 {
				t.Errorf("path %v, rank %d: got %+v, want one sample with a duration", path, rank, times)
			}

			const minWait = launchDelay / 3 // the kernels of other ranks may also start late
			if rank != lateRank && times.Time < minWait {
				t.Errorf("path %v, rank %d: the call took %v, want at least %v", path, rank, times.Time,
					minWait)
			}
		}
	}
}

// A group's runTimer has an array of samples. While all are in use, further calls are not timed.
func TestTimesWithoutRoomAreSkipped(t *testing.T) {
	g := newTestGroup(t, 1, 20*time.Second)
	g.regroup()
	g.must(func(r *testRank) error {
		c := r.group.(*communicator)
		var timers [len(c.runTimer.samples) + 1]driver.CallTimer
		var started []*runSample
		timedStream := r.stream.(*stream.Stream)
		for i := range timers {
			const anySize = 1
			meter := timers[i].Meter(anySize)
			for range 2 { // a CallTimer skips its first call
				sample := c.runTimer.startSteps(&meter, timedStream)
				if sample != nil {
					started = append(started, sample)
				}
			}
		}

		if len(started) != len(c.runTimer.samples) {
			return failuref("%d calls are timed, want %d", len(started), len(c.runTimer.samples))
		}

		for _, sample := range started {
			c.runTimer.stopSteps(sample, timedStream)
		}

		if err := r.stream.Synchronize(t.Context()); err != nil {
			return err
		}

		c.runTimer.collectUnlessBusy()
		if n := c.runTimer.usedCount.Load(); n != 0 {
			return failuref("%d samples are in use after the calls, want none", n)
		}

		return nil
	})
}
