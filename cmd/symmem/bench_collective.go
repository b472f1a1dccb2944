package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/bench/report"
	"symmem/cmd/symmem/internal/bench"
	"symmem/cmd/symmem/internal/proof"
	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/rendezvous"
)

const benchCollectiveLong = `collective measures collectives between processes, as nccl-tests does.

If a launcher (symmem launch, torchrun, mpirun, srun) started this process, it is one of the ranks.
If not, it starts the ranks. Each rank is bound to a processor. The time of a batch is that of the
slowest rank, and each result is the median of several batches. As in nccl-tests, the size of an
all-gather is that of its output, and the size of a reduce-scatter is that of its input. Sizes are
rounded up to whole elements for each rank. sendrecv sends messages around a ring. The column #wrong
counts the elements that are wrong on any rank.

--path selects the path of the calls and the place of the buffers:

  plain           the buffers are outside windows (memory that is registered on all ranks)
  auto            the first collective registers the buffers; the tuning table chooses the path
  window, direct  the buffers are registered in advance; a call that does not support the path is
                  measured as with auto, and its row ends with a note

--buffers any places the buffers outside windows for every path. Small messages can still take the
direct path.

--compare alternates between auto and all paths that a call supports, on the same buffers. It prints
the best time divided by that of auto: 1 means that auto has chosen the best path. With --enforce,
the command fails if auto has chosen a path other than plain that takes more than 2 percent longer
than plain. Minimum and maximum of floats are exempt, because their path is not chosen for speed.

--check both alternates between the check levels every and off, and prints their ratio.

--graph captures 20 calls, or the given number, into a graph and times its replays. These times do
not contain the time that a call takes on the CPU. Without --graph, calls are launched one by one.

The round-trip time between two processors is measured before and after. On virtual machines, it
depends on where the virtual processors run. Compare two results only if their round-trip times
agree.`

const benchCollectiveExample = `  symmem bench collective --ranks 2
  symmem bench collective --ops all_reduce -b 8 -e 64M -f 2 --ranks 4
  symmem bench collective --ops all --path plain --dtype bfloat16 --redop avg
  symmem bench collective --check both -e 64K --json
  symmem bench collective --compare --graph -b 1K -e 256M --ranks 4
  symmem bench collective --compare --graph --worlds 5 --buffers any --enforce --ranks 4
  symmem bench collective --path direct --buffers any --graph -b 1K -e 1M --ranks 4
  symmem bench collective --backend host --tuning table.json --graph=50
  symmem bench collective --backend nccl --ranks 4 --prove -b 4K -e 16M
  mpirun -np 2 symmem bench collective --ops all_gather`

type collectiveFlags struct {
	*benchFlags
	rankFlags
	config bench.CollectiveOptions
	sizeFlags
	sizeList   []string     // replaces sizeFlags unless it is empty
	operations []string     // names
	buffers    string       // one of buffersNames
	check      string       // a check level, or "both"
	prove      proof.Prover // checks which kernels of NCCL ran, with --prove
}

// parseUnscaledOp parses the name of a reduction without a factor.
func parseUnscaledOp(name string) (symmem.ReduceOp, error) {
	op, err := driver.ParseReduceOp(name)
	if err == nil && op.HasFactor() {
		err = fmt.Errorf("%v needs a factor, which the benchmark does not pass", op)
	}

	return op, err
}

func newBenchCollectiveCommand(shared *benchFlags) *cobra.Command {
	const firstSize, lastSize = 8, 64 << 20 // in bytes
	f := &collectiveFlags{
		benchFlags: shared, sizeFlags: sizeFlags{first: firstSize, last: lastSize},
	}
	f.config.Path = symmem.PathWindow
	f.config.DataType = symmem.Float32
	f.config.ReduceOp = symmem.Sum
	cmd := &cobra.Command{
		Use:     "collective",
		Short:   "Measure collectives, in the columns of nccl-tests",
		Long:    benchCollectiveLong,
		Example: benchCollectiveExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd); err != nil {
				return err
			}

			return f.runAsRanks(cmd, func(w rendezvous.World) error {
				return f.runRank(cmd.Context(), w, cmd.OutOrStdout())
			})
		},
	}
	f.addFlags(cmd.Flags())
	complete(cmd, "ops", append([]string{"all"}, bench.OperationNames()...)...)
	complete(cmd, "path", pathNames...)
	complete(cmd, "buffers", buffersNames...)
	complete(cmd, "check", "default", "off", "registration", "every", "both")
	return cmd
}

func (f *collectiveFlags) addFlags(flags *pflag.FlagSet) {
	c := &f.config
	flags.BoolVar(&f.prove.Enabled, "prove", false, proof.FlagUsage)
	f.addBenchRankFlags(flags, &c.Timeout)
	flags.BoolVar(&c.Compare, "compare", false, "measure auto and all paths alternately")
	flags.IntVar(&c.GraphCalls, "graph", 0, "time replays of graphs with this number of calls")
	flags.Lookup("graph").NoOptDefVal = "20"
	flags.StringVar(&c.Tuning, "tuning", "",
		"table that chooses paths: a file, or built-in (default: the one that Open finds)")
	flags.StringSliceVar(&f.operations, "ops",
		[]string{"all_reduce", "all_gather", "reduce_scatter"}, "operations to measure, or all")
	flags.VarP(&f.first, "min-bytes", "b", "smallest size, such as 8 or 64K")
	flags.VarP(&f.last, "max-bytes", "e", "largest size (quick 1M)")
	flags.Int64VarP(&f.factor, "factor", "f", 2, "ratio of consecutive sizes")
	flags.StringSliceVar(&f.sizeList, "sizes", nil,
		"list of sizes, such as 8,64K,1M, which replaces --min-bytes, --max-bytes and --factor")
	flags.Var(newNameValue(&c.DataType, reduce.ParseDataType), "dtype", "type of elements")
	flags.Var(newNameValue(&c.ReduceOp, parseUnscaledOp), "redop",
		"reduction: "+strings.Join(driver.ReduceOpNames(), ", "))
	flags.Var(newNameValue(&c.Path, symmem.ParsePathChoice), "path",
		"path of the calls and place of the buffers: "+strings.Join(pathNames, ", ")+
			"; with --compare, it is auto")
	flags.StringVar(&f.buffers, "buffers", buffersNames[0],
		"where the buffers are: symmetric (see --path), or any (outside windows)")
	flags.StringVar(&f.check, "check", "default",
		"what ranks compare: off, registration, every, default (depends on the backend), or both "+
			"(measure every and off)")
	flags.IntVar(&c.Worlds, "worlds", 1,
		"number of worlds to open at each check level (3 with --check both); results combine their "+
			"batches")
	flags.IntVar(&c.Iters, "iters", 0, "calls in a batch (default: enough for the length of a batch)")
	flags.BoolVar(&c.InPlace, "in-place", true, "also measure in place")
}

// parse checks the values of flags, and completes the configuration.
func (f *collectiveFlags) parse(cmd *cobra.Command) (err error) {
	c := &f.config
	c.Plan, err = f.parsePlan()
	if err != nil {
		return err
	}

	if err := chooseBackend(&f.backend); err != nil {
		return err
	}

	c.Backend = f.backend
	if !f.isQuick && f.batchDuration == 0 {
		c.Plan.Batch = 2 * bench.Full.Batch
	}

	if f.isQuick && !cmd.Flags().Changed("max-bytes") {
		f.last = 1 << 20
	}

	if err := f.parseSizes(); err != nil {
		return err
	}

	const minRanks = 1
	if err := f.checkRanks(minRanks); err != nil {
		return err
	}

	switch {
	case c.Worlds < 1 || c.Worlds > 16:
		return fmt.Errorf("--worlds is %d, but must be from 1 to 16", c.Worlds)
	case c.Iters < 0:
		return fmt.Errorf("--iters is %d, but must not be negative", c.Iters)
	}

	if err := f.parseNames(cmd.Flags().Changed("worlds")); err != nil {
		return err
	}

	return f.parsePaths(cmd.Flags().Changed("path"))
}

var buffersNames = []string{"symmetric", "any"}

const maxGraphCalls = 10_000

// parsePaths checks the flags about paths, buffers and graphs. hasPath reports whether the user set
// --path.
func (f *collectiveFlags) parsePaths(hasPath bool) error {
	c := &f.config
	if c.Compare && !hasPath {
		c.Path = symmem.PathAuto
	}

	c.OutsideWindows = f.buffers == "any"
	switch {
	case !slices.Contains(buffersNames, f.buffers):
		return fmt.Errorf("--buffers is %q, but must be %s", f.buffers,
			strings.Join(buffersNames, " or "))
	case c.Path == symmem.PathDefault:
		return fmt.Errorf("--path %s cannot be measured", c.Path)
	case c.Compare && c.Path != symmem.PathAuto:
		return fmt.Errorf("--compare measures all paths: remove --path %s", c.Path)
	case c.Compare && len(c.Checks) > 1:
		return errors.New("--compare cannot be combined with --check both")
	case c.GraphCalls < 0 || c.GraphCalls > maxGraphCalls:
		return fmt.Errorf("--graph is %d, but must be from 1 to %d", c.GraphCalls, maxGraphCalls)
	}

	return nil
}

// parseSizes sets the sizes to those of --sizes or, if the flag is not set, of the range.
func (f *collectiveFlags) parseSizes() (err error) {
	c := &f.config
	if len(f.sizeList) == 0 {
		c.Sizes, err = f.sizes()
		return err
	}

	for _, text := range f.sizeList {
		var s size
		if err := s.Set(text); err != nil {
			return err
		}

		if s == 0 {
			return errors.New("--sizes contains 0, but a size must be 1 or more")
		}

		c.Sizes = append(c.Sizes, int64(s))
	}

	return nil
}

// parseNames parses the flags whose values are names. hasWorlds reports whether the user set
// --worlds.
func (f *collectiveFlags) parseNames(hasWorlds bool) (err error) {
	c := &f.config
	c.Operations, err = bench.ParseOperations(f.operations)
	if err != nil {
		return err
	}

	if f.check == "both" {
		c.Checks = []symmem.CheckLevel{symmem.CheckOff, symmem.CheckEvery}
		if !hasWorlds {
			c.Worlds = 3
		}

		return nil
	}

	level, err := symmem.ParseCheckLevel(f.check)
	c.Checks = []symmem.CheckLevel{level}
	return err
}

// runRank takes part in the benchmark. Only rank 0 writes results.
func (f *collectiveFlags) runRank(
	ctx context.Context, world rendezvous.World, out io.Writer,
) (err error) {
	if world.Rank != 0 {
		out = io.Discard
	}

	if err := f.prove.Start(); err != nil {
		return err
	}

	defer f.prove.Close(&err) // joins its error to err
	var probe *bench.Probe    // nil measures nothing
	if world.Rank == 0 {      // the other ranks wait for it in measure
		probe = bench.NewProbe()
	}

	before, err := probe.RoundTrip()
	if err != nil {
		return err
	}

	if err := f.bindRank(world); err != nil {
		return err
	}

	table := &bench.NCCLTests{Writer: out}
	if f.json {
		table.Writer = io.Discard
	}

	fmt.Fprintf(table.Writer,
		"# symmem bench collective: %d ranks, %s path, check %s, round trip %.0f ns\n",
		world.Size, f.config.Path, f.check, before)
	rep, wrongCount, err := f.measure(ctx, table)
	if err != nil {
		rep.Error = err.Error()
		rep.RoundTrip = report.NewTrips(before, before) // the second one was not measured
		finishErr := f.finish(out, table, rep)
		return errors.Join(err, finishErr)
	}

	after, probeErr := probe.RoundTrip()
	rep.RoundTrip = report.NewTrips(before, after)
	proofErr := f.prove.Write(table.Writer, "# ")
	finishErr := f.finish(out, table, rep)
	if err := errors.Join(probeErr, proofErr, finishErr); err != nil {
		return err
	}

	if world.Rank != 0 {
		return nil
	}

	if wrongCount > 0 {
		return exitWith(exitBadResult, fmt.Errorf("wrong elements: %.0f", wrongCount))
	}

	missedLimits := rep.DescribeOverLimit()
	if f.enforce && len(missedLimits) > 0 {
		return exitWith(exitBadResult, errors.New(strings.Join(missedLimits, "; ")))
	}

	return nil
}

// measure measures the rows and writes them. It returns their report and the number of wrong
// elements. After an error, the report contains the rows so far.
func (f *collectiveFlags) measure(
	ctx context.Context, table *bench.NCCLTests,
) (rep *report.Report, wrongCount float64, err error) {
	c := &f.config
	rep = bench.NewReport("collective")
	err = c.Run(ctx, func(r *bench.Row) error {
		for _, result := range r.Results {
			if result == nil { // the row has no such result
				continue
			}

			rep.Results = append(rep.Results, *result)
			wrongCount += result.Figures["wrong"]
		}

		f.prove.AddCall(r.Operation.Name, r.Count, c.DataType.Size())
		return table.WriteRow(c, r)
	})
	if c.Compare {
		rep.SetWorst()
	}

	return rep, wrongCount, err
}

// finish writes the JSON report, or the text that follows the rows.
func (f *collectiveFlags) finish(out io.Writer, table *bench.NCCLTests, r *report.Report) error {
	if f.json {
		return writeJSON(out, r)
	}

	if err := table.WriteFooter(); err != nil {
		return err
	}

	if f.config.Compare {
		if err := bench.WritePathTable(out, r); err != nil {
			return err
		}
	}

	if len(f.config.Checks) > 1 {
		if err := bench.WriteCheckTable(out, r); err != nil {
			return err
		}
	}

	_, err := fmt.Fprintf(out, "# round trip: %.0f ns before, %.0f ns after (%s)\n",
		r.RoundTrip.Before, r.RoundTrip.After, r.RoundTrip.Mode)
	return err
}
