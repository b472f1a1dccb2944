package tcp

import (
	"testing"
	"time"
)

// In TestStallDetector, each step is a tick. It holds the time since the previous tick, and
// whether messages may be stale after the tick.
func TestStallDetector(t *testing.T) {
	const on, stop = statusInterval, 5 * statusInterval
	type step struct {
		after time.Duration
		stale bool
	}
	for name, steps := range map[string][]step{
		"a running process is never stale": {{on, false}, {on, false}, {stallThreshold, false}},
		"a stopped process catches up for three ticks": {
			{on, false}, {stop, true}, {on, true}, {on, true}, {on, false}, {on, false},
		},
		"a process stopped repeatedly has caught up at every fourth tick": {
			{stop, true},
			{stop, true},
			{stop, true},
			{stop, false},
			{stop, true},
			{stop, true},
			{stop, true},
			{stop, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			r := stallDetector{last: now}
			for i, s := range steps {
				now = now.Add(s.after)
				if before := r.mayBeStale(now); s.after > stallThreshold && !before {
					t.Errorf("before tick %d: mayBeStale = false after a stall, want true", i)
				}
				before := r.ticksLeft
				if caughtUp := r.tick(now); caughtUp != (before == 1) {
					t.Errorf("tick %d: tick() = %v with %d ticks left before it", i, caughtUp, before)
				}
				if got := r.mayBeStale(now); got != s.stale {
					t.Errorf("after tick %d: mayBeStale = %v, want %v", i, got, s.stale)
				}
			}
		})
	}
	if now := time.Now(); !new(stallDetector).mayBeStale(now) {
		t.Error("mayBeStale = false for a process that has never run, want true")
	}
}
