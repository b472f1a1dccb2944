package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config configures a run. It must be the same on all ranks. In each round, the run allocates
// buffers, all-reduces them, checks the results and frees the buffers.
type Config struct {
	workload.Config
	Cases    int   // buffers per round, all allocated at the same time
	Rounds   int   // how often the buffers are allocated, reduced and freed
	Elements int64 // float32 elements per buffer
	// Churn is the number of random allocations and frees before the cases of each round. Some of the
	// allocated blocks are checked with all-reduces.
	Churn int
	// Groups is the number of groups: the world (all ranks) and overlapping subgroups. Each group
	// runs all cases.
	Groups int
	// Path is the implementation of the all-reduces. PathWindow accesses the memory of other ranks at
	// the offsets of this rank's buffers, so results are wrong unless memory is symmetric. With
	// PathPlain, results are right wherever the buffers are.
	Path symmem.PathChoice
	// Deterministic is the order of additions that results must match bit for bit. Any order is right
	// if it is symmem.FormulaAny or less. Otherwise, the all-reduces use all types and reductions.
	Deterministic symmem.Formula
	CallSites     bool // record the source line of each allocation
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
	maxPlannedCases = 1_000_000 // in all rounds and groups
	maxElements     = int64(1) << 32
)

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	minElements := int64(1)
	if c.Deterministic > symmem.FormulaAny {
		minElements = 2 // 8 bytes, the size of the largest type
	}

	for _, f := range []struct {
		flag             string
		value, low, high int64
	}{
		{flag: "cases", value: int64(c.Cases), low: 1, high: maxCases},
		{flag: "rounds", value: int64(c.Rounds), low: 1, high: maxRounds},
		{flag: "size", value: c.Elements, low: minElements, high: maxElements},
		{flag: "churn", value: int64(c.Churn), low: 0, high: maxChurn},
		{flag: "groups", value: int64(c.Groups), low: 1, high: maxGroups},
	} {
		if f.value < f.low || f.value > f.high {
			return fmt.Errorf("--%s is %d, but must be from %d to %d", f.flag, f.value, f.low, f.high)
		}
	}

	caseCount := c.Cases * c.Rounds * c.Groups // cannot overflow, because of the limits above
	if caseCount > maxPlannedCases {
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
	const never = -1
	o.CheckInterval = never // comparisons in the background would make the report depend on time
	o.CallSites = c.CallSites
	o.Path = c.Path
	o.Deterministic = c.Deterministic
	return o
}
