package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"symmem/internal/bench"
	"symmem/internal/rendezvous"
)

const benchWindowsLong = "" +
	`windows measures the registration of memory that grows request by request, as a model
that is loaded does: 4 GiB in requests of 2 to 48 MiB, which --seed draws. A pool maps segments that
grow with it, and the end of a scope around each request registers what is new. The baseline maps a
segment for each request and registers it at once, below symmem and without an agreement. Both take
turns; a time is that of all registrations together, on the slowest rank.

More than 8 windows end the command with code 1. It starts the ranks itself, or, started by a
launcher, is one of them.`

const benchWindowsExample = `  symmem bench windows --ranks 2 --backend nccl
  symmem bench windows --bytes 256M --rounds 1 --json`

// windowsFlags are the flags of bench windows as they are given.
type windowsFlags struct {
	*benchFlags
	config  bench.Windows
	ranks   int
	bytes   bytesFlag
	started bool
}

func newBenchWindowsCommand(shared *benchFlags) *cobra.Command {
	f := &windowsFlags{benchFlags: shared, bytes: 4 << 30}
	cmd := &cobra.Command{
		Use:     "windows",
		Short:   "Measure the registration of memory that grows",
		Long:    benchWindowsLong,
		Example: benchWindowsExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd); err != nil {
				return err
			}
			return asRanks(cmd, f.ranks, f.started, func(w rendezvous.World) error {
				return f.run(cmd, w)
			})
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.ranks, "ranks", 2, "processes to start, up to 64")
	flags.Var(&f.bytes, "bytes", "what is requested in all, such as 4G")
	flags.Uint64Var(&f.config.Seed, "seed", 1, "where requests are drawn from")
	flags.IntVar(&f.config.Rounds, "rounds", 3, "how often both ways take turns (quick 1)")
	flags.DurationVar(&f.config.Timeout, "timeout", 30*time.Second, "longest wait for another rank")
	flags.BoolVar(&f.started, startedFlag, false, "this process is a rank of a bench")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
	return cmd
}

// maxWindowBytes is what the baseline reserves addresses for, less what rounding may add.
const maxWindowBytes = 32 << 30

// parse checks all flags before anything starts.
func (f *windowsFlags) parse(cmd *cobra.Command) error {
	c := &f.config
	if _, err := f.plan(); err != nil {
		return err
	}
	if f.quick && !cmd.Flags().Changed("rounds") {
		c.Rounds = 1
	}
	c.Backend = cmp.Or(f.backend, "auto")
	c.Bytes, c.Least, c.Most = int64(f.bytes), 2<<20, 48<<20
	switch {
	case c.Bytes < c.Least || c.Bytes > maxWindowBytes:
		return fmt.Errorf("bytes is %d, but must be from 2M to 32G", c.Bytes)
	case c.Rounds < 1:
		return fmt.Errorf("rounds is %d, but must be positive", c.Rounds)
	case f.ranks < 1 || f.ranks > maxRanks:
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", f.ranks, maxRanks)
	}
	return nil
}

func (f *windowsFlags) run(cmd *cobra.Command, w rendezvous.World) error {
	var found *bench.Report
	err := f.rank(cmd, w, true, func() (report *bench.Report, err error) {
		found, err = f.config.Run(cmd.Context())
		return found, err
	})
	if err != nil {
		return err
	}
	if err := found.TooMany(); err != nil {
		return exitWith(exitWrong, err)
	}
	return nil
}
