package main

import (
	"github.com/spf13/cobra"

	"symmem/internal/bench"
)

const benchQueryLong = "" +
	`query measures Runtime.IsSymmetric, which says whether a range lies in a window
of a group: for ranges that do, all over the windows, and for ranges that do not.

The baseline is a walk over the list of windows.`

const benchQueryExample = `  symmem bench query
  symmem bench query --segments 10,10000 --json`

func newBenchQueryCommand(f *benchFlags) *cobra.Command {
	segments := []int{10, 1000, 10_000}
	cmd := &cobra.Command{
		Use:     "query",
		Short:   "Measure whether memory is symmetric",
		Long:    benchQueryLong,
		Example: benchQueryExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.quick && !cmd.Flags().Changed("segments") {
				segments = []int{10, 1000}
			}
			if err := positive("segments", segments); err != nil {
				return err
			}
			return f.measure(cmd, func(p bench.Plan) (*bench.Report, error) {
				return bench.Query(cmd.Context(), p, segments)
			})
		},
	}
	cmd.Flags().IntSliceVar(&segments, "segments", segments, "windows of the group, rising")
	return cmd
}
