package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Config configures a run. It must be the same on all ranks.
//
// A run consists of rounds. In each round, ranks first make random allocations and frees. Each
// group of ranks then allocates some buffers, all-reduces them, checks the results and frees the
// buffers. By default, 2 rounds with 8 buffers of 1 MiB check 16 results.
type Config struct {
	workload.Config
	Cases    int   // number of buffers of each group in a round, all allocated at the same time
	Rounds   int   // number of rounds
	Elements int64 // number of float32 elements in a buffer
	// Churn is the number of random allocations and frees in a round. Some of the allocated buffers
	// are also all-reduced and checked.
	Churn int
	// Groups is the number of groups. The first is the world, which consists of all ranks. The others
	// consist of slightly more than half of the ranks.
	Groups int
	// Path is the way to run the all-reduces. PathWindow accesses the memory of other ranks at the
	// offsets of this rank's buffers, so results are wrong if the offsets differ. With PathPlain,
	// they are right wherever the buffers are.
	Path symmem.PathChoice
	// Deterministic is the formula (the order of additions) that results must match bit for bit. The
	// all-reduces then use all types and reductions. FormulaDefault and FormulaAny permit any order.
	Deterministic symmem.Formula
	CallSites     bool // whether to record the source line of each allocation
}

// Default returns the default configuration.
func Default() Config {
	return Config{
		Config: workload.Default(), Cases: 8, Rounds: 2, Elements: 256 << 10, Groups: 1,
		Path: symmem.PathWindow,
	}
}

// These limits bound the size of a run's program (list of steps) and of its report.
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
	usesAllTypes := c.Deterministic > symmem.FormulaAny
	if usesAllTypes {
		minElements = 2 // 8 bytes, the size of a float64, which is the largest type
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

	totalCases := c.Cases * c.Rounds * c.Groups // cannot overflow, because of the other limits
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
	// Ranks must not compare their allocations at regular intervals, because the report would then
	// depend on the speed of the machine.
	const never = -1
	o.CheckInterval = never
	o.CallSites = c.CallSites
	o.Path = c.Path
	o.Deterministic = c.Deterministic
	return o
}
