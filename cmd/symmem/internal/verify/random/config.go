package random

import (
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config holds the options of a run, which must be the same on all ranks. With CheckDefault, rounds
// use the check levels in turn.
type Config struct {
	workload.Config
	FirstRound int           // counted from 1
	Rounds     int           // maximum number, or 0
	Duration   time.Duration // time after which no further round begins, or 0
	Steps      int           // per round
	MaxBytes   int64         // of a rank's message
	// SharedGPUs is set if several ranks share a GPU, on which the kernels of two groups may not fit.
	// Graphs of different groups are then not replayed at the same time.
	SharedGPUs   bool
	RoundTimeout time.Duration
}

// Default returns options with Skew set. The caller must set Rounds or Duration.
func Default() Config {
	shared := workload.Default()
	shared.Skew = true
	return Config{
		Config: shared, FirstRound: 1, Steps: 200, MaxBytes: 4 << 20,
		RoundTimeout: 2 * time.Minute,
	}
}

const (
	maxSteps   = 1_000_000
	minMessage = 4 << 10
	maxMessage = int64(1) << 30
)

// Validate returns an error for the first invalid option.
func (c *Config) Validate() error {
	switch {
	case c.FirstRound < 1:
		return fmt.Errorf("the first round is %d, but must be 1 or more", c.FirstRound)
	case c.Rounds < 0:
		return fmt.Errorf("--rounds is %d, but must not be negative", c.Rounds)
	case c.Duration < 0:
		return fmt.Errorf("the duration is %v, but must not be negative", c.Duration)
	case c.Rounds == 0 && c.Duration == 0:
		return errors.New("random programs need a duration (--for 20m) or a number of rounds " +
			"(--rounds 1)")
	case c.Steps < 1 || c.Steps > maxSteps:
		return fmt.Errorf("--steps is %d, but must be from 1 to %d", c.Steps, maxSteps)
	case c.MaxBytes < minMessage || c.MaxBytes > maxMessage:
		return fmt.Errorf("the maximum message size is %d bytes, but must be from %d to %d", c.MaxBytes,
			minMessage, maxMessage)
	case c.Timeout <= 0 || c.RoundTimeout <= 0:
		return fmt.Errorf("--timeout is %v and --round-timeout is %v, but both must be positive",
			c.Timeout, c.RoundTimeout)
	}

	return nil
}

func (c *Config) checkLevels() []symmem.CheckLevel {
	if c.Check != symmem.CheckDefault {
		return []symmem.CheckLevel{c.Check}
	}

	return []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckRegistration, symmem.CheckOff}
}

// hasMoreRounds reports whether another round should begin after done rounds.
func (c *Config) hasMoreRounds(done int, elapsed time.Duration) bool {
	return (c.Rounds == 0 || done < c.Rounds) && (c.Duration == 0 || elapsed < c.Duration)
}
