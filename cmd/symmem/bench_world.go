package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/internal/bench"
	"symmem/internal/rendezvous"
)

// worldFlags are the flags of a bench that runs on all ranks alike: it starts them itself, or,
// started by a launcher, is one of them.
type worldFlags struct {
	*benchFlags
	ranks   int
	unbound bool
	started bool
}

func (f *worldFlags) register(flags *pflag.FlagSet, timeout *time.Duration) {
	flags.IntVar(&f.ranks, "ranks", 2, "processes to start, up to 64")
	flags.BoolVar(&f.unbound, "unbound", false, "do not bind ranks to processors")
	flags.DurationVar(timeout, "timeout", 30*time.Second, "longest wait for another rank")
	flags.BoolVar(&f.started, startedFlag, false, "this process is a rank of a bench")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
}

// apply checks the shared flags and hands them on.
func (f *worldFlags) apply(plan *bench.Plan, backend *string) (err error) {
	if *plan, err = f.plan(); err != nil {
		return err
	}
	*backend = cmp.Or(f.backend, "auto")
	return checkRanks(f.ranks)
}

// runs is what the command does: all flags are checked before anything starts.
func (f *worldFlags) runs(
	parse func() error, rank func(*cobra.Command, rendezvous.World) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if err := parse(); err != nil {
			return err
		}
		return asRanks(cmd, f.ranks, f.started, func(w rendezvous.World) error {
			return rank(cmd, w)
		})
	}
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
