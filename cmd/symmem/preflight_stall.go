package main

import (
	"sync"
	"time"
)

// stallInterval is the time between the ticks of a stallWatch.
const stallInterval = 100 * time.Millisecond

// stallWatch detects, by late ticks, that this process did not run: that it was stopped, or its
// machine was overloaded. This rank may then have been the late one, so its errors must not blame
// other ranks.
type stallWatch struct {
	mu       sync.Mutex // guards the fields below
	lastTick time.Time
	longest  time.Duration // between ticks
}

// startStallWatch starts a goroutine that ticks until stop is called. The first interval starts at
// begin.
func startStallWatch(begin time.Time) (w *stallWatch, stop func()) {
	w = &stallWatch{lastTick: begin}
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		ticker := time.NewTicker(stallInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.tick(time.Now())
			case <-done:
				return
			}
		}
	})
	stop = func() {
		close(done)
		ticking.Wait()
	}
	return w, stop
}

func (w *stallWatch) tick(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, now.Sub(w.lastTick))
	w.lastTick = now
}

// longestStall returns the longest time between two ticks. It counts as a tick as well, so the
// result includes the time since the last tick.
func (w *stallWatch) longestStall(now time.Time) time.Duration {
	w.tick(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.longest
}
