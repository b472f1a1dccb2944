package random

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"symmem"
)

func TestValidateRejectsInvalidOptions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // part of the error's text
	}{
		"round 0": {
			change: func(c *Config) { c.FirstRound = 0 },
			want:   "the first round is 0",
		},
		"negative rounds": {
			change: func(c *Config) { c.Rounds = -1 },
			want:   "rounds is -1",
		},
		"no limit": {
			change: func(c *Config) { c.Rounds = 0 },
			want:   "need a duration",
		},
		"negative duration": {
			change: func(c *Config) { c.Duration = -1 },
			want:   "the duration is -1ns",
		},
		"no steps": {
			change: func(c *Config) { c.Steps = 0 },
			want:   "steps is 0",
		},
		"messages too long": {
			change: func(c *Config) { c.MaxBytes = maxMessage + 1 },
			want:   "the maximum message size",
		},
		"no round timeout": {
			change: func(c *Config) { c.RoundTimeout = 0 },
			want:   "both must be positive",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := Default()
			config.Rounds = 1
			c.change(&config)
			err := config.Validate()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Validate() = %v, want an error with %q", err, c.want)
			}
		})
	}

	// A run may have a duration instead of a number of rounds.
	withDuration := Default()
	withDuration.Duration = time.Minute
	if err := withDuration.Validate(); err != nil {
		t.Errorf("with only a duration: Validate() = %v, want no error", err)
	}
}

// A run ends at the first of two limits: a number of rounds and a duration.
func TestRunEndsAtLimits(t *testing.T) {
	timed := Config{Duration: time.Minute}
	counted := Config{Rounds: 3}
	both := Config{Duration: time.Minute, Rounds: 3}
	for _, c := range []struct {
		name       string
		config     Config
		doneRounds int
		elapsed    time.Duration
		want       bool // whether another round begins
	}{
		{
			name: "duration has not elapsed", config: timed,
			doneRounds: 1000, elapsed: 59 * time.Second, want: true,
		},
		{
			name: "duration has elapsed", config: timed,
			doneRounds: 1, elapsed: time.Minute, want: false,
		},
		{
			name: "rounds remain", config: counted,
			doneRounds: 2, elapsed: time.Hour, want: true,
		},
		{
			name: "no rounds remain", config: counted,
			doneRounds: 3, elapsed: 0, want: false,
		},
		{
			name: "both limits, none reached", config: both,
			doneRounds: 2, elapsed: time.Second, want: true,
		},
		{
			name: "both limits, duration has elapsed", config: both,
			doneRounds: 2, elapsed: time.Minute, want: false,
		},
		{
			name: "both limits, no rounds remain", config: both,
			doneRounds: 3, elapsed: time.Second, want: false,
		},
	} {
		if got := c.config.hasMoreRounds(c.doneRounds, c.elapsed); got != c.want {
			t.Errorf("%s: hasMoreRounds(%d, %v) = %v, want %v", c.name, c.doneRounds, c.elapsed, got,
				c.want)
		}
	}
}

func TestFlagsToRepeatIncludeAllOptions(t *testing.T) {
	const round = 31 // arbitrary
	c := Default()
	c.Seed = 9 // arbitrary
	c.Placement = symmem.PlaceByAddress
	c.Check = symmem.CheckOff
	c.Skew = false
	want := "--seed 9 --from-round 31 --rounds 1 --steps 200 --max-bytes 4194304 " +
		"--placement address --check off --skew=false"
	if got := FlagsToRepeat(&c, round); got != want {
		t.Errorf("FlagsToRepeat in round %d:\ngot  %s\nwant %s", round, got, want)
	}
}

func TestStepErrorsNameTheStepOnce(t *testing.T) {
	s := &step{name: "suspending a pool"}
	const number = 3 // arbitrary
	for text, want := range map[string]string{
		"suspending a pool: busy": "step 3, suspending a pool: busy",
		"closed":                  "step 3, suspending a pool: closed",
	} {
		if got := s.errorAt(number, errors.New(text)).Error(); got != want {
			t.Errorf("errorAt(%d, %q) = %q, want %q", number, text, got, want)
		}
	}
}

func TestDrawStepFollowsWeights(t *testing.T) {
	totalWeight := 0
	for _, s := range steps {
		totalWeight += s.weight
	}

	const drawsPerWeight = 200 // enough for each count to be within a factor of two
	const seed1, seed2 = 1, 2  // arbitrary
	d := &choices{Rand: rand.New(rand.NewPCG(seed1, seed2))}
	counts := map[string]int{} // by the name of the step
	drawCount := drawsPerWeight * totalWeight
	for range drawCount {
		counts[drawStep(d).name]++
	}

	for _, s := range steps {
		average := drawsPerWeight * s.weight
		lowest := average / 2
		highest := 2 * average
		if got := counts[s.name]; got < lowest || got > highest {
			t.Errorf("%s: drawn %d times, want %d to %d", s.name, got, lowest, highest)
		}
	}
}

func TestGrowthAboveToleranceIsReported(t *testing.T) {
	const tolerance = 16
	r := Report{Resources: []Resource{
		{Name: "goroutines", Start: 10, End: 9},
		{Name: "file descriptors", Start: 10, End: 10 + tolerance, Tolerance: tolerance},
	}}
	if !r.OK() {
		t.Errorf("without growth above the tolerance: Leaks() = %v, want none", r.Leaks())
	}

	r.Resources[1].End++
	if r.OK() {
		t.Error("with growth above the tolerance: OK() = true, want false")
	}

	leaks := r.Leaks()
	if len(leaks) != 1 || leaks[0].Name != "file descriptors" {
		t.Fatalf("Leaks() = %v, want only the file descriptors", leaks)
	}

	if text := leaks[0].String(); !strings.HasSuffix(text, "LEAKED") {
		t.Errorf("text of the leak = %q, want LEAKED at the end", text)
	}
}

func TestReportWithWrongElementIsNotOK(t *testing.T) {
	r := Report{Tally: Tally{Wrong: 1}}
	if r.OK() {
		t.Error("OK() = true for a report with a wrong element, want false")
	}
}
