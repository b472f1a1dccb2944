package tcp

import (
	"testing"
	"time"
)

// TestRhythm has, for each tick, how long after the one before it comes, and whether the process is
// deaf behind it.
func TestRhythm(t *testing.T) {
	const on, stop = tellInterval, 5 * tellInterval
	type step struct {
		after time.Duration
		deaf  bool
	}
	for name, steps := range map[string][]step{
		"a process that runs hears": {{on, false}, {on, false}, {asleep, false}},
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
			r := rhythm{last: now}
			for i, s := range steps {
				now = now.Add(s.after)
				if before := r.deaf(now); s.after > asleep && !before {
					t.Errorf("before tick %d it hears, though it was stopped", i)
				}
				was := r.left
				if heard := r.tick(now); heard != (was == 1) {
					t.Errorf("tick %d tells %v", i, heard)
				}
				if got := r.deaf(now); got != s.deaf {
					t.Errorf("after tick %d deaf is %v, want %v", i, got, s.deaf)
				}
			}
		})
	}
	if now := time.Now(); !new(rhythm).deaf(now) {
		t.Error("a process that has never run hears")
	}
}
