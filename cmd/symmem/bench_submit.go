package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"symmem"
	"symmem/internal/bench"
	"symmem/internal/rendezvous"
)

const benchSubmitLong = "" +
	`submit measures what it costs the processor to submit one all-reduce of 8 float32
through a group: the calls alone, with a synchronisation after each --calls of them, which is not
timed. It does so on the plain path and, where there are such, on the window and the direct path. A
time is that of the slowest rank.

The baseline runs in turns with it. On GPUs it is NCCL's own ncclAllReduce on a communicator of the
same kind over the same ranks, from one thread that keeps its device; on the host the launch of a
prepared call below symmem. On the direct path, which NCCL has not, the baseline is its plain one.
The bar is 300 ns over the baseline, on the direct path 5 us.

It starts the ranks itself, or, started by a launcher, is one of them.`

const benchSubmitExample = `  symmem bench submit --ranks 2
  symmem bench submit --ranks 4 --backend nccl --json
  symmem bench submit --backend host --enforce`

// submitFlags are the flags of bench submit as they are given.
type submitFlags struct {
	*benchFlags
	config  bench.Submit
	ranks   int
	check   string
	unbound bool
	started bool
}

func newBenchSubmitCommand(shared *benchFlags) *cobra.Command {
	f := &submitFlags{benchFlags: shared}
	cmd := &cobra.Command{
		Use:     "submit",
		Short:   "Measure what submitting a collective costs, against NCCL's own",
		Long:    benchSubmitLong,
		Example: benchSubmitExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return asRanks(cmd, f.ranks, f.started, func(w rendezvous.World) error {
				return f.rank(cmd, w, f.unbound, func() (*bench.Report, error) {
					return f.config.Run(cmd.Context())
				})
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.ranks, "ranks", 2, "processes to start")
	flags.IntVar(&f.config.Calls, "calls", 1000, "calls from one synchronisation to the next")
	flags.StringVar(&f.check, "check", "registration",
		"what ranks compare: off, registration or every")
	flags.BoolVar(&f.unbound, "unbound", false, "do not bind ranks to processors")
	flags.DurationVar(&f.config.Timeout, "timeout", 30*time.Second, "longest wait for another rank")
	flags.BoolVar(&f.started, startedFlag, false, "this process is a rank of a bench")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
	complete(cmd, "check", "off", "registration", "every")
	return cmd
}

// maxSubmitCalls bounds what is queued at once.
const maxSubmitCalls = 100_000

// parse checks all flags before anything starts.
func (f *submitFlags) parse() (err error) {
	c := &f.config
	if c.Plan, err = f.plan(); err != nil {
		return err
	}
	c.Backend = cmp.Or(f.backend, "auto")
	if c.Check, err = symmem.ParseCheckLevel(f.check); err != nil {
		return err
	}
	if c.Calls < 1 || c.Calls > maxSubmitCalls {
		return fmt.Errorf("calls is %d, but must be from 1 to %d", c.Calls, maxSubmitCalls)
	}
	return checkRanks(f.ranks)
}

// checkRanks refuses a number of ranks that no comparison can have.
func checkRanks(ranks int) error {
	if ranks < 2 || ranks > maxRanks {
		return fmt.Errorf("ranks is %d, but must be from 2 to %d", ranks, maxRanks)
	}
	return nil
}

// rank measures as one rank. Only rank 0 writes.
func (f *benchFlags) rank(
	cmd *cobra.Command, w rendezvous.World, unbound bool, run func() (*bench.Report, error),
) error {
	if !unbound {
		if err := bench.BindRank(w.LocalRank); err != nil {
			return err
		}
	}
	if w.Rank != 0 {
		_, err := run()
		return err
	}
	return f.measure(cmd, func(bench.Plan) (*bench.Report, error) { return run() })
}
