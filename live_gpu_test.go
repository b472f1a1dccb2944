package symmem_test

import (
	"math"
	"os"
	"testing"
	"time"

	"symmem"
)

// TestGPUTimesMatchClock queues all-reduces one after the other and compares the times of the live
// view with the clock. With SYMMEM_TEST_BARS, it fails if they differ by more than 10 us and more
// than a quarter, unless the GPU waited for the host between calls: the view's times then include
// the launch. The test also prints the time to submit a call with and without a live view.
func TestGPUTimesMatchClock(t *testing.T) {
	const calls = 512 // four of them are timed
	skipOnHost(t, "only the backend nccl has GPU times")
	useLiveFolder(t)
	for _, http := range []string{"", "unix"} {
		for _, path := range []symmem.PathChoice{
			symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
		} {
			for _, bytes := range []int64{4 << 10, 32 << 20} {
				if bytes > 4<<10 && os.Getenv(barsVariable) == "" {
					continue // takes long without a GPU
				}

				o := symmem.Options{HTTP: http, Path: path, Check: symmem.CheckOff}
				runRanks(t, 2, o, func(r *rank) {
					r.compareTimes(path, bytes, calls, http != "")
				})
			}
		}
	}
}

func (r *rank) compareTimes(path symmem.PathChoice, bytes int64, calls int, hasView bool) {
	r.t.Helper()
	m, stream := r.window(r.pool(), bytes).Memory(), r.DefaultStream()
	queue := func(n int) {
		for range n {
			r.ok(r.World().AllReduce(r.ctx, m, m, bytes/4, symmem.Float32, symmem.Sum, stream))
		}
	}
	queue(1) // loads code
	r.synchronize()
	r.ok(r.World().Barrier(r.ctx, nil))
	begin := time.Now()
	queue(calls)
	submit := time.Since(begin)
	r.synchronize()
	clock := time.Since(begin).Seconds() / float64(calls)
	const us = 1e6
	r.t.Logf("rank %d, path %v, %d bytes, live view %t: %.2f us to submit a call, %.2f us to run it",
		r.Rank(), path, bytes, hasView, submit.Seconds()/float64(calls)*us, clock*us)
	if !hasView {
		return
	}

	samples, seconds := uint64(0), 0.0
	await(r.t, "times of four calls", func() bool {
		for _, c := range viewOf(r.t, r.Runtime).Ranks[r.Rank()].Groups[0].Calls {
			if c.Operation == "AllReduce" && c.Run != nil && c.MinBytes <= bytes && bytes < c.MaxBytes {
				samples, seconds = c.Run.Samples, c.Run.Seconds
			}
		}

		return samples >= 4
	})
	mean := seconds / float64(samples)
	r.t.Logf("rank %d, path %v, %d bytes: the live view shows %.2f us", r.Rank(), path, bytes, mean*us)
	limit, hostBound := max(10/us, clock/4), clock*float64(calls) < 2*submit.Seconds()
	if os.Getenv(barsVariable) != "" && !hostBound && math.Abs(mean-clock) > limit {
		r.t.Errorf("the live view shows %.2f us, the clock %.2f us; want a difference of at most %.2f us",
			mean*us, clock*us, limit*us)
	}
}
