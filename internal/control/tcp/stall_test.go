package tcp

import (
	"testing"
	"time"
)

// Each step is a tick. It holds the time since the previous tick, and whether messages may be stale
// after the tick.
func TestStallDetector(t *testing.T) {
	const onTime, late = statusInterval, 5 * statusInterval
	type step struct {
		after time.Duration
		stale bool
	}
	for name, steps := range map[string][]step{
		"a running process is never stale": {{onTime, false}, {onTime, false}, {stallThreshold, false}},
		"a stopped process catches up for three ticks": {
			{onTime, false}, {late, true}, {onTime, true}, {onTime, true}, {onTime, false}, {onTime, false},
		},
		"a process stopped repeatedly has caught up at every fourth tick": {
			{late, true},
			{late, true},
			{late, true},
			{late, false},
			{late, true},
			{late, true},
			{late, true},
			{late, false},
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
