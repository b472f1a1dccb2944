package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/cmd/symmem/internal/bench"
)

const benchLong = `bench measures symmem against baselines, alternating between the two.

Each result is the median of several batches, with the minimum and the 10th and 90th percentiles. A
ratio is the median of the baseline divided by that of symmem: above 1, symmem is faster. Some
results have a bar, which is an upper limit. With --enforce, the command exits with code 1 if a
result is above its bar.

--quick measures a few short batches, for continuous integration. --json prints one object, whose
fields are listed in docs/reference/json.md.`

const benchExample = `  symmem bench collective --ranks 2 -b 8 -e 64M -f 2
  symmem bench collective --backend host --json`

type benchFlags struct {
	planFlags
	json    bool
	enforce bool
	backend string
}

// maxBatches bounds the memory for the times of all batches.
const maxBatches = 1_000_000

// planFlags holds the flags that set the duration of measurements.
type planFlags struct {
	quick   bool
	batches int
	batch   time.Duration
}

func (f *planFlags) registerPlan(flags *pflag.FlagSet) {
	flags.BoolVar(&f.quick, "quick", false, "measure a few short batches, for continuous integration")
	flags.IntVar(&f.batches, "batches", 0, "batches of each variant (default 21, quick 5)")
	flags.DurationVar(&f.batch, "batch", 0, "length of a batch (default 5ms, quick 1ms)")
}

func (f *planFlags) plan() (bench.Plan, error) {
	p := bench.Full
	if f.quick {
		p = bench.Quick
	}
	if f.batches < 0 || f.batch < 0 {
		return p, fmt.Errorf("--batches is %d and --batch is %v, but neither may be negative",
			f.batches, f.batch)
	}
	if f.batches > maxBatches {
		return p, fmt.Errorf("--batches is %d, but must be from 1 to %d", f.batches, maxBatches)
	}
	return bench.Plan{
		Batches: cmp.Or(f.batches, p.Batches), Batch: cmp.Or(f.batch, p.Batch),
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
	f.registerPlan(flags)
	flags.BoolVar(&f.enforce, "enforce", false, "exit with code 1 if a result is above its bar")
	backendFlag(flags, &f.backend)
	cmd.AddCommand(
		newBenchCollectiveCommand(f),
	)
	complete(cmd, "backend", backendNames()...)
	return cmd
}
