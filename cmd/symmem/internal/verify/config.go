package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config configures a run. It must be the same on all ranks.
type Config struct {
	workload.Config
	Cases    int   // number of buffers, which are all live at the same time
	Rounds   int   // number of times the buffers are allocated, reduced and freed
	Elements int64 // float32 elements of a buffer
	// Churn is the number of random allocations and frees before the cases of each round. They are
	// the same on all ranks, and some of the live blocks are reduced and checked.
	Churn  int
	Groups int // the world and overlapping subgroups, each of which runs all cases
	// Path is the path of collectives. On PathPlain, results are right wherever the buffers are, so
	// only PathWindow proves that memory is symmetric.
	Path symmem.PathChoice
	// Deterministic is a formula that results must match bit for bit, if any. The all-reduces then
	// cycle through all types and reductions.
	Deterministic symmem.Formula
	CallSites     bool // see symmem.Options
}

// Default returns the default configuration.
func Default() Config {
	return Config{
		Config: workload.Default(), Cases: 8, Rounds: 2, Elements: 256 << 10, Groups: 1,
		Path: symmem.PathWindow,
	}
}

// Limits on the fields of a Config, which bound the size of programs and reports.
const (
	maxCases    = 1024
	maxRounds   = 100_000
	maxChurn    = 1_000_000
	maxGroups   = 64
	maxRows     = 1_000_000
	maxElements = int64(1) << 32
)

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	minElements := int64(1)
	if c.Deterministic > symmem.FormulaAny {
		minElements = 2 // one element of the largest type
	}
	for _, f := range []struct {
		name             string
		value, low, high int64
	}{
		{"cases", int64(c.Cases), 1, maxCases},
		{"rounds", int64(c.Rounds), 1, maxRounds},
		{"size", c.Elements, minElements, maxElements},
		{"churn", int64(c.Churn), 0, maxChurn},
		{"groups", int64(c.Groups), 1, maxGroups},
	} {
		if f.value < f.low || f.value > f.high {
			return fmt.Errorf("--%s is %d, but must be from %d to %d", f.name, f.value, f.low, f.high)
		}
	}
	if rows := c.Cases * c.Rounds * c.Groups; rows > maxRows {
		return fmt.Errorf("--cases x --rounds x --groups is %d, but must be at most %d", rows, maxRows)
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout is %v, but must be positive", c.Timeout)
	}
	return nil
}

// Options returns the options with which a rank opens its Runtime. They disable comparisons in the
// background, so that identical runs have identical reports.
func (c *Config) Options() symmem.Options {
	o := c.Config.Options()
	o.CheckInterval, o.CallSites, o.Path, o.Deterministic = -1, c.CallSites, c.Path, c.Deterministic
	return o
}
