package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/cmd/symmem/internal/bench"
	"symmem/internal/reduce"
	"symmem/internal/rendezvous"
)

const tuneLong = `tune measures which path is fastest, and writes the table that chooses the path.

If a launcher (symmem launch, torchrun, mpirun, srun) started this process, it is one of the ranks.
If not, it starts the ranks.

tune measures each operation at several sizes, out of place and in place. It alternates between the
plain, the window and the direct path on the same buffers. If calls on buffers outside windows
(memory that is registered on all ranks) can take the direct path, it measures them as well, out of
place. On several machines without a direct path, it measures the two-level path instead, and shows
its time in the column "direct".

If the backend can capture graphs, tune times replays of graphs. The time of a batch is that of the
slowest rank, and each result is the median of several batches. A wrong sum makes the command fail.

The table has two kinds of rules. Rules with a kind of memory (symmetric or any) decide whether a
call takes the direct path. The other rules choose between plain and window for the remaining calls.
At the smallest size, calls take the plain path (on the host backend, the window path). At each
larger size, the path changes only if another path is faster by more than 2 percent and by more than
the noise. Between two measured sizes, the limit is where the ratio of the times would be 1. A rule
applies out of place and in place. If these differ in the faster path, plain has precedence over
window, and both have precedence over direct. The two-level path is chosen only at sizes where it is
faster both out of place and in place.

--factor 4 halves the time of the measurement, and --max 64M halves it again. --dtype is the type of
the measured elements, but the table applies to all types. Choose a type that all paths support: on
GPUs, for example, sums of int8 have only the plain path. For sizes outside --min and --max, tune
keeps the times of the present table if they are for this device, library and type. Without such
times, these sizes take the path of the nearest measured size.

The table is for this device and number of ranks. On every machine that has ranks, tune writes it to
the file that programs read by default, $XDG_CONFIG_HOME/symmem/tuning-DEVICE-RANKS.json (in .config
in the home directory if the variable is not set). It keeps the rules in this file for other
operations or more machines. Options.Tuning and SYMMEM_TUNING name other files. All ranks of a
program need the same table, so they compare it when they connect. The file describes its format,
and you may edit it.

--json prints one object: {"file", "written", "skipped", "table"}.`

const tuneExample = `  symmem tune --ranks 4
  symmem tune --ranks 4 --ops all_reduce,all_gather,reduce_scatter --factor 4
  symmem tune --ranks 2 --max 16M --dry-run
  symmem tune --ranks 4 --dtype float32 --ops all_reduce
  symmem tune --ops all_reduce,all_gather --output table.json
  SYMMEM_TUNING=table.json symmem bench collective --compare --ranks 2
  torchrun --nproc-per-node 8 --no-python symmem tune`

// tuneFlags holds the flags of tune. parse completes config, which describes the measurement.
type tuneFlags struct {
	rankFlags
	planFlags
	config bench.TuneOptions
	sizeFlags
	operations []string // names
	outputFile string   // "" for the file that symmem.Open finds
	json       bool
	isDryRun   bool // write no table
	isEager    bool // time calls one by one instead of replays of graphs
}

func newTuneCommand() *cobra.Command {
	const firstSize, lastSize = 1 << 10, 256 << 20 // in bytes
	f := &tuneFlags{sizeFlags: sizeFlags{first: firstSize, last: lastSize}}
	cmd := &cobra.Command{
		Use:     "tune",
		Short:   "Measure which path is fastest, and write the table that chooses it",
		Long:    tuneLong,
		Example: tuneExample,
		Args:    cobra.NoArgs,
		Annotations: map[string]string{
			noSharingAnnotation: "a tuning table must be measured with a GPU for each rank",
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd.Flags()); err != nil {
				return err
			}

			if err := f.checkTableWritable(); err != nil {
				return exitWith(exitIncomplete, err)
			}

			return f.runAsRanks(cmd, func(w rendezvous.World) error {
				return f.runRank(cmd, w)
			})
		},
	}
	f.addFlags(cmd.Flags())
	complete(cmd, "ops", bench.OperationNames()...)
	complete(cmd, "backend", backendNames()...)
	complete(cmd, "dtype", dataTypeNames()...)
	return cmd
}

func (f *tuneFlags) addFlags(flags *pflag.FlagSet) {
	c := &f.config
	f.addBenchRankFlags(flags, &c.Timeout)
	addBackendFlag(flags, &c.Backend)
	flags.StringSliceVar(&f.operations, "ops",
		[]string{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall"},
		"operations to measure")
	flags.VarP(&f.first, "min", "b", "smallest size, such as 1K")
	flags.VarP(&f.last, "max", "e", "largest size (quick 1M)")
	flags.Int64VarP(&f.factor, "factor", "f", 2, "ratio of consecutive sizes")
	c.DataType = reduce.BFloat16
	flags.Var(newNameValue(&c.DataType, reduce.ParseDataType), "dtype", "type of elements")
	flags.IntVar(&c.GraphCalls, "graph", 20, "maximum number of calls in a graph")
	flags.BoolVar(&f.isEager, "eager", false, "time calls one by one instead of replays of graphs")
	f.addPlanFlags(flags)
	flags.StringVarP(&f.outputFile, "output", "o", "",
		"file to write (default: the one that Open finds)")
	flags.BoolVar(&f.isDryRun, "dry-run", false, "write no file")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

// parse checks the values of flags, and completes the configuration.
func (f *tuneFlags) parse(flags *pflag.FlagSet) (err error) {
	c := &f.config
	c.Plan, err = f.parsePlan()
	if err != nil {
		return err
	}

	if f.isQuick && !flags.Changed("max") {
		const quickLast = 1 << 20
		f.last = quickLast
	}

	const minRanks = 2
	if err := f.checkRanks(minRanks); err != nil {
		return err
	}

	if c.GraphCalls < 1 || c.GraphCalls > maxGraphCalls {
		return fmt.Errorf("--graph is %d, but must be from 1 to %d", c.GraphCalls, maxGraphCalls)
	}

	if f.isEager {
		c.GraphCalls = 0
	}

	c.Sizes, err = f.sizes()
	if err != nil {
		return err
	}

	if err := chooseBackend(&c.Backend); err != nil {
		return err
	}

	c.Operations, err = bench.ParseOperations(f.operations)
	return err
}

// dataTypeNames returns the values of --dtype.
func dataTypeNames() (names []string) {
	for _, t := range reduce.DataTypes() {
		names = append(names, t.String())
	}

	return names
}

// runRank takes part in the measurement. Rank 0 prints the result, and the first rank of each
// machine writes the table.
func (f *tuneFlags) runRank(cmd *cobra.Command, world rendezvous.World) error {
	if err := f.bindRank(world); err != nil {
		return err
	}

	isPrinter := world.Rank == 0
	isWriter := world.LocalRank == 0
	c := &f.config
	c.Date = time.Now().Format(time.DateOnly)
	c.Base = f.previousTable
	if isPrinter {
		c.Progress = func(text string) { fmt.Fprintf(cmd.ErrOrStderr(), "measuring %s\n", text) }
	}

	tuned, err := c.Run(cmd.Context())
	if err != nil {
		hasRules := tuned != nil && len(tuned.Rules) > 0
		if isPrinter && hasRules {
			err = errors.Join(err, f.printPartialResult(cmd.OutOrStdout(), tuned))
		}

		return err
	}

	file, err := f.tableFile(tuned.Device, tuned.Ranks)
	if err != nil {
		return err
	}

	mustWrite := !f.isDryRun && len(tuned.Rules) > 0
	if mustWrite && isWriter {
		if err := writeTable(file, tuned.Table); err != nil {
			return err
		}
	}

	if !isPrinter {
		return nil
	}

	return f.printResult(cmd.OutOrStdout(), tuned, file, mustWrite)
}

// printPartialResult prints the rules that were measured before an error. The table is not
// written.
func (f *tuneFlags) printPartialResult(w io.Writer, tuned *bench.TuneResult) error {
	const isWritten = false
	file, _ := f.tableFile(tuned.Device, tuned.Ranks) // is only printed, so it may be ""
	return f.printResult(w, tuned, file, isWritten)
}

// printResult prints the rules, and the path of the table's file. isWritten says whether this file
// has been written.
func (f *tuneFlags) printResult(
	w io.Writer, tuned *bench.TuneResult, file string, isWritten bool,
) error {
	if f.json {
		document, err := tuned.Document(file, isWritten)
		if err != nil {
			return err
		}

		return writeJSON(w, document)
	}

	if err := tuned.WriteText(w); err != nil {
		return err
	}

	var written string
	switch {
	case isWritten:
		written = file
	case fileExists(file):
		written = "nothing: " + file + " is unchanged"
	default:
		written = "nothing: the table would be written to " + file
	}

	_, err := fmt.Fprintf(w, "written: %s\n", written)
	return err
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
