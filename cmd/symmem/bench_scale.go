package main

import (
	"github.com/spf13/cobra"

	"symmem/internal/bench"
)

const benchScaleLong = "" +
	`scale runs the agreement of whole clusters in this process, over the cores that
real ranks run: the ranks agree on a history, or find the first event at which one of them differs.
And it grows pools under many groups, and measures one registration, which must cost the same at
any number.

Messages, bytes, rounds and hops are exact. Times are those of all ranks together on one processor,
and include that the ranks' histories are made.`

const benchScaleExample = `  symmem bench scale
  symmem bench scale --ranks 4096 --events 1000000
  symmem bench scale --quick --json`

func newBenchScaleCommand(f *benchFlags) *cobra.Command {
	sizes := bench.ScaleSizes{
		Ranks: []int{8, 64, 512, 4096}, Events: 100_000,
		Segments: []int{10, 100, 1000, 10_000}, Groups: []int{1, 8, 64},
	}
	cmd := &cobra.Command{
		Use:     "scale",
		Short:   "Measure agreement and growth at thousands of ranks",
		Long:    benchScaleLong,
		Example: benchScaleExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for what, numbers := range map[string][]int{
				"ranks": sizes.Ranks, "events": {sizes.Events},
				"segments": sizes.Segments, "groups": sizes.Groups,
			} {
				if err := positive(what, numbers); err != nil {
					return err
				}
			}
			return f.measure(cmd, func(p bench.Plan) (*bench.Report, error) {
				return bench.Scale(cmd.Context(), p, sizes)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&sizes.Ranks, "ranks", sizes.Ranks, "sizes of the cluster")
	flags.IntVar(&sizes.Events, "events", sizes.Events, "length of the history")
	flags.IntSliceVar(&sizes.Segments, "segments", sizes.Segments, "segments that pools grow to")
	flags.IntSliceVar(&sizes.Groups, "groups", sizes.Groups, "groups that register them")
	return cmd
}
