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
ratio is the median of the baseline divided by the median of symmem: above 1, symmem is faster.
Some results have an upper limit, called a bar. With --enforce, the command exits with code 1 if a
result is above its bar.

--quick measures a few short batches, for continuous integration. --json prints one object, whose
fields are listed in docs/reference/json.md.`

const benchExample = `  symmem bench collective --ranks 2 -b 8 -e 64M -f 2
  symmem bench collective --backend host --json`

// benchFlags holds the flags shared by all subcommands of bench.
type benchFlags struct {
	planFlags
	json    bool
	enforce bool   // exit with code 1 if a result is above its bar
	backend string // "" means $SYMMEM_BACKEND
}

// planFlags holds the flags of bench and tune for a bench.Plan.
type planFlags struct {
	isQuick       bool          // use the defaults for continuous integration
	batchCount    int           // batches of each variant of a call; 0 means the default
	batchDuration time.Duration // length of a batch; 0 means the default
}

func (f *planFlags) addPlanFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.isQuick, "quick", false,
		"measure a few short batches, for continuous integration")
	flags.IntVar(&f.batchCount, "batches", 0, "batches of each variant (default 21, quick 5)")
	flags.DurationVar(&f.batchDuration, "batch", 0, "length of a batch (default 5ms, quick 1ms)")
}

// maxBatches limits memory, because bench keeps the time of every batch.
const maxBatches = 1_000_000

// parsePlan validates the flags, and replaces 0 by the defaults.
func (f *planFlags) parsePlan() (bench.Plan, error) {
	defaults := bench.Full
	if f.isQuick {
		defaults = bench.Quick
	}

	if f.batchCount < 0 || f.batchCount > maxBatches {
		return bench.Plan{}, fmt.Errorf("--batches is %d, but must be from 1 to %d", f.batchCount,
			maxBatches)
	}

	if f.batchDuration < 0 {
		return bench.Plan{}, fmt.Errorf("--batch is %v, but must not be negative", f.batchDuration)
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
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
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
