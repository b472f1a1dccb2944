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
		text   string // part of the error's text
	}{
		"round 0":           {func(c *Config) { c.FirstRound = 0 }, "the first round is 0"},
		"negative rounds":   {func(c *Config) { c.Rounds = -1 }, "rounds is -1"},
		"no limit":          {func(c *Config) { c.Rounds = 0 }, "need a duration"},
		"negative duration": {func(c *Config) { c.Duration = -1 }, "the duration is -1ns"},
		"no steps":          {func(c *Config) { c.Steps = 0 }, "steps is 0"},
		"messages too long": {func(c *Config) { c.MaxBytes = 1 << 40 }, "the maximum message size"},
		"no round timeout":  {func(c *Config) { c.RoundTimeout = 0 }, "both must be positive"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Default()
			config.Rounds = 1
			c.change(&config)
			err := config.Validate()
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Validate() = %v, want an error with %q", err, c.text)
			}
		})
	}
	config := Default()
	config.Duration = time.Minute
	if err := config.Validate(); err != nil {
		t.Errorf("with only a duration: Validate() = %v, want no error", err)
	}
}

func TestRunEndsAtLimits(t *testing.T) {
	timed := Config{Duration: time.Minute}
	if !timed.hasMoreRounds(1000, 59*time.Second) || timed.hasMoreRounds(1, time.Minute) {
		t.Error("a run with a duration does not end exactly when it has elapsed")
	}
	counted := Config{Rounds: 3}
	if !counted.hasMoreRounds(2, time.Hour) || counted.hasMoreRounds(3, 0) {
		t.Error("a run with a number of rounds does not end exactly after them")
	}
	both := Config{Duration: time.Minute, Rounds: 3}
	if !both.hasMoreRounds(2, time.Second) || both.hasMoreRounds(2, time.Minute) ||
		both.hasMoreRounds(3, time.Second) {
		t.Error("a run with both limits does not end at the first limit reached")
	}
}

func TestFlagsToRepeatIncludeAllOptions(t *testing.T) {
	c := Default()
	c.Seed, c.Placement, c.Check, c.Skew = 9, symmem.PlaceByAddress, symmem.CheckOff, false
	want := "--seed 9 --from-round 31 --rounds 1 --steps 200 --max-bytes 4194304 " +
		"--placement address --check off --skew=false"
	if got := FlagsToRepeat(&c, 31); got != want {
		t.Errorf("FlagsToRepeat in round 31:\ngot  %s\nwant %s", got, want)
	}
}

func TestStepErrorsNameTheStepOnce(t *testing.T) {
	s := &step{name: "suspending a pool"}
	for text, want := range map[string]string{
		"suspending a pool: busy": "step 3, suspending a pool: busy",
		"closed":                  "step 3, suspending a pool: closed",
	} {
		if got := s.errorAt(3, errors.New(text)).Error(); got != want {
			t.Errorf("errorAt(3, %q) = %q, want %q", text, got, want)
		}
	}
}

func TestDrawStepFollowsWeights(t *testing.T) {
	totalWeight := 0
	for _, s := range steps {
		totalWeight += s.weight
	}
	const drawsPerWeight = 200
	d := &choices{Rand: rand.New(rand.NewPCG(1, 2))}
	counts := map[string]int{} // by the name of the step
	for range drawsPerWeight * totalWeight {
		counts[drawStep(d).name]++
	}
	for _, s := range steps {
		want := drawsPerWeight * s.weight
		if got := counts[s.name]; got < want/2 || got > 2*want {
			t.Errorf("%s: drawn %d times, want about %d", s.name, got, want)
		}
	}
}

func TestGrowthAboveToleranceIsReported(t *testing.T) {
	r := Report{Resources: []Resource{
		{Name: "goroutines", Start: 10, End: 9},
		{Name: "file descriptors", Start: 10, End: 26, Tolerance: 16},
	}}
	if !r.OK() {
		t.Errorf("without growth above the tolerance: Leaks() = %v, want none", r.Leaks())
	}
	r.Resources[1].End++
	if leaks := r.Leaks(); r.OK() || len(leaks) != 1 || leaks[0].Name != "file descriptors" ||
		!strings.HasSuffix(leaks[0].String(), "LEAKED") {
		t.Errorf("Leaks() = %v, want the file descriptors", leaks)
	}
	if r = (Report{Tally: Tally{Wrong: 1}}); r.OK() {
		t.Error("OK() = true for a report with a wrong element, want false")
	}
}
