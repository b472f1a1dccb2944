package main

import (
	"github.com/spf13/cobra"

	"symmem/internal/bench"
)

const benchScopeLong = "" +
	`scope measures the beginning and end of a scope with nothing new to register, over
pools whose segments are all registered with all groups. It must cost the same at any number of
either.

The baseline is a snapshot walk, as SGLang had before #21392: copy the list of all segments with
their blocks and look each up in the map of those that are registered.

Combinations with more windows than --max-windows are left out: making them takes long.`

const benchScopeExample = `  symmem bench scope
  symmem bench scope --segments 10,10000 --groups 1
  symmem bench scope --quick --json`

func newBenchScopeCommand(f *benchFlags) *cobra.Command {
	sizes := bench.ScopeSizes{
		Segments: []int{10, 100, 1000, 10_000}, Groups: []int{1, 8, 64}, MaxWindows: 64_000,
	}
	cmd := &cobra.Command{
		Use:     "scope",
		Short:   "Measure scopes with nothing new",
		Long:    benchScopeLong,
		Example: benchScopeExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.quick && !cmd.Flags().Changed("max-windows") {
				sizes.MaxWindows = 1000
			}
			if err := positive("segments", sizes.Segments); err != nil {
				return err
			}
			if err := positive("groups", sizes.Groups); err != nil {
				return err
			}
			return f.measure(cmd, func(p bench.Plan) (*bench.Report, error) {
				return bench.Scope(cmd.Context(), p, sizes)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&sizes.Segments, "segments", sizes.Segments, "segments of the pool, rising")
	flags.IntSliceVar(&sizes.Groups, "groups", sizes.Groups, "groups that registered them")
	flags.IntVar(&sizes.MaxWindows, "max-windows", sizes.MaxWindows,
		"most windows, segments times groups (quick 1000)")
	return cmd
}
