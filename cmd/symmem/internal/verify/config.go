package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

// Config configures a run. It must be the same on all ranks.
//
// In each round, ranks make random allocations and frees (churn). Each group of ranks then
// all-reduces new buffers and checks the results.
type Config struct {
	workload.Config
	Cases    int // all-reduces of each group in a round, without churn
	Rounds   int
	Elements int64 // float32 elements in a buffer
	Churn    int   // random allocations and frees in a round
	Groups   int   // number of groups: the world (all ranks) and overlapping subsets
	// Path selects the implementation of the all-reduces. PathWindow computes wrong sums if the
	// offset of a buffer differs between ranks.
	Path symmem.PathChoice
	// Deterministic is the formula (order of additions) that results must match bit for bit.
	// FormulaDefault and FormulaAny permit any order.
	Deterministic symmem.Formula
	CallSites     bool // record the source line of each allocation
}

// hasFormula reports whether Deterministic fixes the order of additions.
func (c *Config) hasFormula() bool { return c.Deterministic > symmem.FormulaAny }

// formula converts Deterministic: FormulaAny becomes 0, and the others follow in the same order.
func (c *Config) formula() driver.Formula {
	return driver.Formula(c.Deterministic - symmem.FormulaAny)
}

// Default returns a configuration of 2 rounds, each with 8 buffers of 1 MiB.
func Default() Config {
	return Config{
		Config: workload.Default(), Cases: 8, Rounds: 2, Elements: 256 << 10, Groups: 1,
		Path: symmem.PathWindow,
	}
}

// These limits bound the memory of the program and of the report.
const (
	maxCases      = 1024
	maxRounds     = 100_000
	maxChurn      = 1_000_000
	maxGroups     = 64
	maxTotalCases = 1_000_000 // Cases x Rounds x Groups
	maxElements   = int64(1) << 32
)

// Validate returns an error for the first invalid field.
func (c *Config) Validate() error {
	minElements := int64(1)
	if c.hasFormula() {
		minElements = 2 // large enough for one float64
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
		isInRange := f.value >= f.low && f.value <= f.high
		if !isInRange {
			return fmt.Errorf("--%s is %d, but must be from %d to %d", f.flag, f.value, f.low, f.high)
		}
	}

	totalCases := c.Cases * c.Rounds * c.Groups // cannot overflow, given the limits above
	if totalCases > maxTotalCases {
		return fmt.Errorf("--cases x --rounds x --groups is %d, but must be at most %d", totalCases,
			maxTotalCases)
	}

	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout is %v, but must be positive", c.Timeout)
	}

	return nil
}

// Options returns the options with which a rank opens its Runtime.
func (c *Config) Options() symmem.Options {
	o := c.Config.Options()
	// Periodic checks would make the report depend on the machine's speed.
	const never = -1
	o.CheckInterval = never
	o.CallSites = c.CallSites
	o.Path = c.Path
	o.Deterministic = c.Deterministic
	return o
}
