package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/cmd/symmem/internal/bench"
)

const benchLong = `bench measures symmem against baselines, in alternating batches.

Each result is the median of several batches, with the minimum and the 10th and 90th percentiles. A
ratio is the median of the baseline divided by that of symmem: above 1, symmem is faster. Some
results have a bar, which is an upper limit. With --enforce, the command exits with code 1 if a
result is above its bar.

--quick measures a few short batches, for continuous integration. --json prints one object, whose
fields are listed in docs/reference/json.md.`

const benchExample = `  symmem bench collective --ranks 2 -b 8 -e 64M -f 2
  symmem bench collective --backend host --json`

// bench and tune compare variants of a call, for example on the plain path (A) and on the window
// path (B). They repeat the call in batches of 5 ms, which alternate: A, B, A, B, and so on, until
// each variant has 21 batches. A plan consists of the length and the number of batches.

// benchFlags holds the flags that all subcommands of bench have.
type benchFlags struct {
	planFlags
	json    bool
	enforce bool   // fail if a result is above its bar, an upper limit
	backend string // "" for the value of SYMMEM_BACKEND
}

// maxBatches limits the number of batches, because their times are kept in memory.
const maxBatches = 1_000_000

// planFlags holds the flags that determine the plan.
type planFlags struct {
	isQuick       bool          // use the smaller defaults
	batchCount    int           // number of batches of each variant; 0 for the default
	batchDuration time.Duration // length of a batch; 0 for the default
}

func (f *planFlags) addPlanFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.isQuick, "quick", false,
		"measure a few short batches, for continuous integration")
	flags.IntVar(&f.batchCount, "batches", 0, "batches of each variant (default 21, quick 5)")
	flags.DurationVar(&f.batchDuration, "batch", 0, "length of a batch (default 5ms, quick 1ms)")
}

// parsePlan checks the values of the flags, and returns the plan.
func (f *planFlags) parsePlan() (bench.Plan, error) {
	defaults := bench.Full
	if f.isQuick {
		defaults = bench.Quick
	}

	if f.batchCount < 0 || f.batchCount > maxBatches {
		return defaults, fmt.Errorf("--batches is %d, but must be from 1 to %d", f.batchCount,
			maxBatches)
	}

	if f.batchDuration < 0 {
		return defaults, fmt.Errorf("--batch is %v, but must not be negative", f.batchDuration)
	}

	return bench.Plan{
		Batches: cmp.Or(f.batchCount, defaults.Batches),
		Batch:   cmp.Or(f.batchDuration, defaults.Batch),
	}, nil
}

func newBenchCommand() *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:     "bench",
		Short:   "Measure collectives",
		Long:    benchLong,
		Example: benchExample,
		Args:    cobra.NoArgs,
		// Only the subcommands measure.
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := cmd.PersistentFlags()
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	f.addPlanFlags(flags)
	flags.BoolVar(&f.enforce, "enforce", false, "exit with code 1 if a result is above its bar")
	addBackendFlag(flags, &f.backend)
	cmd.AddCommand(newBenchCollectiveCommand(f))
	complete(cmd, "backend", backendNames()...)
	return cmd
}
