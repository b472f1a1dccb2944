package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"symmem"
	"symmem/cmd/symmem/internal/bench"
	"symmem/internal/rendezvous"
)

const benchSubmitLong = "" +
	`submit measures what it costs the processor to submit one all-reduce of 8 float32
through a group: the calls alone, with a synchronisation after each --calls of them, which is not
timed. It does so on the plain path and, where there are such, on the window and the direct path.

All ranks submit at the same time. Each first tries --processors of its own in turn, since those of
a virtual machine need not be equally fast, and then measures on its fastest one, with eight times
as many batches as a try has (--batches). Of its pairs, a batch of each side, it keeps the quarter
whose neighbours took the least time: what else the machine does slows both sides, for longer than
a pair. The figures are those of the rank that costs most over the baseline (on the direct path,
that costs most). How far the difference can be off by chance, within this run, is printed with it
as noise, and what all pairs say. With --unbound the system puts ranks where it likes.

The baseline runs in turns with it. On GPUs it is NCCL's own ncclAllReduce on the same communicator
and stream, from one thread that keeps its device; on the host the launch of a prepared call below
symmem. On the direct path, which NCCL has not, the baseline is its plain one.
The bar is 300 ns over the baseline, on the direct path 5 us.

It starts the ranks itself, or, started by a launcher, is one of them.`

const benchSubmitExample = `  symmem bench submit --ranks 2
  symmem bench submit --ranks 4 --backend nccl --json
  symmem bench submit --backend host --enforce`

// submitFlags are the flags of bench submit as they are given.
type submitFlags struct {
	*benchFlags
	rankFlags
	config bench.Submit
}

func newBenchSubmitCommand(shared *benchFlags) *cobra.Command {
	f := &submitFlags{benchFlags: shared, config: bench.Submit{Check: symmem.CheckRegistration}}
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
			return f.asRanks(cmd, func(w rendezvous.World) error { return f.rank(cmd, w) })
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.config.Calls, "calls", 1000, "calls from one synchronisation to the next")
	flags.IntVar(&f.config.Processors, "processors", 8,
		"among how many processors each rank looks for its fastest")
	flags.Var(named(&f.config.Check, symmem.ParseCheckLevel), "check",
		"what ranks compare: off, registration or every")
	f.registerTimed(flags, &f.config.Timeout)
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
	if err := chooseBackend(&f.backend); err != nil {
		return err
	}
	c.Backend = f.backend
	if err := f.checkRanks(2); err != nil {
		return err
	}
	if c.Calls < 1 || c.Calls > maxSubmitCalls {
		return fmt.Errorf("calls is %d, but must be from 1 to %d", c.Calls, maxSubmitCalls)
	}
	if c.Processors < 1 {
		return fmt.Errorf("processors is %d, but must be at least 1", c.Processors)
	}
	if f.unbound {
		c.Processors = 0 // else a rank binds the thread that measures, not the others
	}
	return nil
}

// rank measures as one rank. Only rank 0 writes.
func (f *submitFlags) rank(cmd *cobra.Command, w rendezvous.World) error {
	report, err := f.config.Run(cmd.Context())
	if w.Rank != 0 {
		return err
	}
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("measuring: %w", err))
	}
	if err := writeReport(cmd.OutOrStdout(), f.json, report, func(w io.Writer) error {
		return bench.SubmitTable(w, report)
	}); err != nil {
		return exitWith(exitUsage, err)
	}
	if missed := report.Missed(); f.enforce && len(missed) > 0 {
		return exitWith(exitWrong, errors.New(strings.Join(missed, "; ")))
	}
	return nil
}
