package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config configures a run. It must be the same on all ranks.
type Config struct {
	workload.Config
	Cases    int   // buffers per round, all allocated at the same time
	Rounds   int   // how often the buffers are allocated, reduced and freed
	Elements int64 // float32 elements per buffer
	// Churn is the number of random allocations and frees before the cases of each round. Some of the
	// allocated blocks are checked with all-reduces.
	Churn int
	// Groups is the number of groups, each of which runs all cases: the world and overlapping
	// subgroups.
	Groups int
	// Path is the way in which symmem executes the all-reduces. PathWindow accesses the memory of
	// other ranks at the offsets of this rank's buffers, so results are wrong unless memory is
	// symmetric. With PathPlain, results are right wherever the buffers are.
	Path symmem.PathChoice
	// Deterministic is the order of additions that results must match bit for bit. If it is above
	// symmem.FormulaAny, the all-reduces use all types and reductions; otherwise, any order is
	// right.
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

// These limits bound the size of programs and reports.
const (
	maxCases        = 1024
	maxRounds       = 100_000
	maxChurn        = 1_000_000
	maxGroups       = 64
	maxPlannedCases = 1_000_000
	maxElements     = int64(1) << 32
)

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	minElements := int64(1)
	if c.Deterministic > symmem.FormulaAny {
		minElements = 2 // 8 bytes, the size of the largest type
	}
	for _, f := range []struct {
		name             string // of the flag
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
	if caseCount := c.Cases * c.Rounds * c.Groups; caseCount > maxPlannedCases {
		return fmt.Errorf("--cases x --rounds x --groups is %d, but must be at most %d", caseCount,
			maxPlannedCases)
	}
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout is %v, but must be positive", c.Timeout)
	}
	return nil
}

// Options returns the options with which a rank opens its Runtime.
func (c *Config) Options() symmem.Options {
	o := c.Config.Options()
	o.CheckInterval = -1 // no comparisons in the background, so that identical runs report the same
	o.CallSites = c.CallSites
	o.Path = c.Path
	o.Deterministic = c.Deterministic
	return o
}
