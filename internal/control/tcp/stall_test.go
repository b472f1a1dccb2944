package tcp

import (
	"testing"
	"time"
)

// TestStallDetector has, for each tick, how long after the one before it comes, and whether the
// process is deaf behind it.
func TestStallDetector(t *testing.T) {
	const on, stop = statusInterval, 5 * statusInterval
	type step struct {
		after time.Duration
		stale bool
	}
	for name, steps := range map[string][]step{
		"a process that runs hears": {{on, false}, {on, false}, {stallThreshold, false}},
		"one that was stopped listens for three ticks": {
			{on, false}, {stop, true}, {on, true}, {on, true}, {on, false}, {on, false},
		},
		"one that is stopped again and again hears at every fourth": {
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
					t.Errorf("before tick %d it hears, though it was stopped", i)
				}
				was := r.ticksLeft
				if caughtUp := r.tick(now); caughtUp != (was == 1) {
					t.Errorf("tick %d tells %v", i, caughtUp)
				}
				if got := r.mayBeStale(now); got != s.stale {
					t.Errorf("after tick %d deaf is %v, want %v", i, got, s.stale)
				}
			}
		})
	}
	if now := time.Now(); !new(stallDetector).mayBeStale(now) {
		t.Error("a process that has never run hears")
	}
}
