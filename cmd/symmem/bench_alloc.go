package main

import (
	"github.com/spf13/cobra"

	"symmem/internal/bench"
)

const benchAllocLong = "" +
	`alloc measures pairs of Pool.Alloc and Buffer.Free, with the ledger on as always:
one size again and again, first in first out, random sizes with random victims, and the shape of
training.

The baselines are a naive best fit over a sorted list, and our placement core set to PyTorch's
policy and sizing, without lock or ledger.`

const benchAllocExample = `  symmem bench alloc
  symmem bench alloc --live 1000 --json
  symmem bench alloc --quick --enforce`

func newBenchAllocCommand(f *benchFlags) *cobra.Command {
	var live int
	cmd := &cobra.Command{
		Use:     "alloc",
		Short:   "Measure allocation",
		Long:    benchAllocLong,
		Example: benchAllocExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive("live", []int{live}); err != nil {
				return err
			}
			return f.measure(cmd, func(p bench.Plan) (*bench.Report, error) {
				return bench.Alloc(cmd.Context(), p, live)
			})
		},
	}
	cmd.Flags().IntVar(&live, "live", 10_000, "live blocks of the random workload")
	return cmd
}
