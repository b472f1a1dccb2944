package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"symmem/internal/bench"
)

const benchRegisterLong = "" +
	`register measures what it costs to register new segments, given how many are
registered already, on ranks inside this process: from the call to its return on the slowest rank.
The baseline is the first number of --there, so a ratio of 1 says that the cost does not grow.

It also measures what the pages of a fresh segment cost when they are first touched: by the owner,
against a plain shared file, and by a peer in the first broadcast over the window, against the
second. With 2 MiB pages there are 512 times fewer faults; the report says of what pages segments
are, and if of small ones, why: none-set-aside or too-few-free (/proc/sys/vm/nr_hugepages).`

const benchRegisterExample = `  symmem bench register
  symmem bench register --new 1 --there 0,1000 --ranks 4
  symmem bench register --quick --json`

func newBenchRegisterCommand(f *benchFlags) *cobra.Command {
	sizes := bench.RegisterSizes{
		There: []int{0, 10, 100, 1000}, New: []int{1, 8}, Ranks: 2,
	}
	cmd := &cobra.Command{
		Use:     "register",
		Short:   "Measure registration and fresh memory",
		Long:    benchRegisterLong,
		Example: benchRegisterExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.quick && !cmd.Flags().Changed("there") {
				sizes.There = []int{0, 100}
			}
			if err := checkRegisterSizes(sizes); err != nil {
				return err
			}
			return f.measure(cmd, func(p bench.Plan) (*bench.Report, error) {
				report, err := bench.Register(cmd.Context(), p, sizes)
				if err != nil {
					return nil, err
				}
				return report, bench.Faults(cmd.Context(), p, report)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&sizes.There, "there", sizes.There, "segments registered already")
	flags.IntSliceVar(&sizes.New, "new", sizes.New, "segments of one registration")
	flags.IntVar(&sizes.Ranks, "ranks", sizes.Ranks, "ranks, all in this process")
	return cmd
}

func checkRegisterSizes(sizes bench.RegisterSizes) error {
	if len(sizes.There) == 0 {
		return fmt.Errorf("there is empty")
	}
	for _, n := range sizes.There {
		if n < 0 {
			return fmt.Errorf("there has %d, but must not be negative", n)
		}
	}
	if err := positive("new", sizes.New); err != nil {
		return err
	}
	return positive("ranks", []int{sizes.Ranks})
}
