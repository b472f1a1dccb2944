package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"symmem/driver"
	"symmem/internal/bench"
	"symmem/internal/rendezvous"
)

const benchNormLong = "" +
	`norm measures the end of a layer whose rows are split over GPUs: an all-reduce of
[rows, hidden] bfloat16, the addition of a residual and an RMSNorm, in one call, which is two
kernels: the second does what is left after the all-reduce. The baseline, which runs in turns with
it, is three kernels: the all-reduce of the direct path, an addition and an RMSNorm; "plain us" has
NCCL's all-reduce instead. --graph-ops of each are captured into a graph, whose
replays are timed; a time is that of one on the slowest rank.

Before a shape is measured its residuals must be equal to the bit, and outputs up to one unit in the
last place. The bar is the baseline. Rows that do not fit into exchange memory are not measured.

It needs GPUs whose memory is within reach of each other. It starts the ranks itself, or, started by
a launcher, is one of them.`

const benchNormExample = `  symmem bench norm --ranks 4
  symmem bench norm --ranks 2 --rows 1,16 --hidden 7168 --json --enforce`

// normFlags are the flags of bench norm as they are given.
type normFlags struct {
	worldFlags
	config bench.Norm
}

func newBenchNormCommand(shared *benchFlags) *cobra.Command {
	f := &normFlags{worldFlags: worldFlags{benchFlags: shared}}
	cmd := &cobra.Command{
		Use:     "norm",
		Short:   "Measure all-reduce, residual and RMSNorm in one call against three",
		Long:    benchNormLong,
		Example: benchNormExample,
		Args:    cobra.NoArgs,
	}
	cmd.RunE = f.runs(f.parse, f.run)
	c, flags := &f.config, cmd.Flags()
	flags.IntSliceVar(&c.Hidden, "hidden", []int{4096, 8192}, "elements of a row, multiples of 8")
	flags.IntSliceVar(&c.Rows, "rows", []int{1, 2, 4, 8, 16, 32, 64, 128, 256}, "rows of a call")
	flags.IntVar(&c.GraphOps, "graph-ops", 20, "calls that are captured into a graph")
	f.register(flags, &c.Timeout)
	return cmd
}

// maxNormRows bounds the buffers.
const maxNormRows = 1 << 16

// parse checks all flags before anything starts.
func (f *normFlags) parse() error {
	c := &f.config
	if err := f.settle(&c.Plan, &c.Backend); err != nil {
		return err
	}
	if err := errors.Join(positive("rows", c.Rows), positive("hidden", c.Hidden)); err != nil {
		return err
	}
	for _, n := range c.Rows {
		if n > maxNormRows {
			return fmt.Errorf("rows has %d, but may have %d at most", n, maxNormRows)
		}
	}
	for _, n := range c.Hidden {
		if n%driver.NormUnit != 0 || n > driver.MaxHidden {
			return fmt.Errorf("hidden has %d, but must be multiples of %d up to %d", n, driver.NormUnit,
				driver.MaxHidden)
		}
	}
	if c.GraphOps < 1 || c.GraphOps > maxGraphOps {
		return fmt.Errorf("graph-ops is %d, but must be from 1 to %d", c.GraphOps, maxGraphOps)
	}
	return nil
}

func (f *normFlags) run(cmd *cobra.Command, w rendezvous.World) error {
	return f.play(cmd, w, func() (*bench.Report, error) { return f.config.Run(cmd.Context()) })
}
