package random

import (
	"errors"
	"fmt"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config says what to run. Every rank needs the same. CheckDefault takes all check levels in turns,
// a round each.
type Config struct {
	workload.Config
	// From is the number of the first round, counted from 1.
	From int
	// Rounds is how many there are at most, and Duration how long they begin. Without one of them, 0,
	// the other one decides.
	Rounds   int
	Duration time.Duration
	// Steps is the number of steps of a round.
	Steps int
	// MaxBytes is the longest message of a rank in bytes.
	MaxBytes int64
	// SharedGPUs says that ranks share GPUs: only the graphs of one group are replayed at once then,
	// since a part of a GPU need not hold the kernels of two (package kernels, Progress).
	SharedGPUs bool
	// RoundTimeout bounds a round.
	RoundTimeout time.Duration
}

// Default is skewed rounds. How many, or for how long, is still to be said.
func Default() Config {
	shared := workload.Default()
	shared.Skew = true
	return Config{
		Config: shared, From: 1, Steps: 200, MaxBytes: 4 << 20,
		RoundTimeout: 2 * time.Minute,
	}
}

// The limits of a Config.
const (
	maxSteps   = 1_000_000
	minMessage = 4 << 10
	maxMessage = int64(1) << 30
)

// Validate reports the first field that makes no sense.
func (c *Config) Validate() error {
	switch {
	case c.From < 1:
		return fmt.Errorf("the first round is %d, but they count from 1", c.From)
	case c.Rounds < 0:
		return fmt.Errorf("rounds is %d, but must not be negative", c.Rounds)
	case c.Duration < 0:
		return fmt.Errorf("random programs run for %v, but that must not be negative", c.Duration)
	case c.Rounds == 0 && c.Duration == 0:
		return errors.New("say for how long random programs run (--for 20m), or how many rounds " +
			"(--rounds 1)")
	case c.Steps < 1 || c.Steps > maxSteps:
		return fmt.Errorf("steps is %d, but must be from 1 to %d", c.Steps, maxSteps)
	case c.MaxBytes < minMessage || c.MaxBytes > maxMessage:
		return fmt.Errorf("the longest message has %d bytes, but must have %d to %d", c.MaxBytes,
			minMessage, maxMessage)
	case c.Timeout <= 0 || c.RoundTimeout <= 0:
		return fmt.Errorf("timeouts are %v and %v, but must be positive", c.Timeout, c.RoundTimeout)
	}
	return nil
}

// levels are the check levels that rounds take in turns.
func (c *Config) levels() []symmem.CheckLevel {
	if c.Check != symmem.CheckDefault {
		return []symmem.CheckLevel{c.Check}
	}
	return []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckRegistration, symmem.CheckOff}
}

// more reports whether another round comes, when so many are done after a time.
func (c *Config) more(done int, took time.Duration) bool {
	return (c.Rounds == 0 || done < c.Rounds) && (c.Duration == 0 || took < c.Duration)
}
