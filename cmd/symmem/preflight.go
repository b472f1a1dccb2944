package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/cmd/symmem/internal/preflight"
	"symmem/internal/rendezvous"
)

const preflightLong = `preflight checks, before a job starts, that its ranks can work together.

If a launcher (symmem launch, torchrun, mpirun, srun, Kubernetes) started this process, it is one of
the ranks. If not, it starts the ranks. It needs neither MPI nor ssh.

Each rank opens the backend, all-reduces 4 KiB and 16 MiB on each path, and checks the sums. If the
tuning table has a time for such a call, the call may take at most this time divided by --tolerance.
Then each pair of ranks exchanges messages of 4 MiB (1 MiB on the host). A link is slow if three
measurements are below --tolerance times the speed of fast links. Links within a node and between
nodes are compared separately. The first rank of each node also reports what symmem doctor finds
there.

The report names the node, the rank with its GPU, or the link at fault. If most links of a rank are
slow, the rank is at fault. The link of two ranks cannot be compared with others: --min-link sets a
limit for all links. Under a launcher, rank 0 prints the report. If rank 0 is
lost, the lowest remaining rank prints it. The other ranks print their errors on standard error.

--prometheus writes a file for the textfile collector of node_exporter on each node. The fields of
--json are listed in docs/reference/json.md.

Exit codes: 0 ready; 1 wrong sums or slow calls; 2 preflight could not run; 3 a node is at fault; 4
a rank or its GPU is at fault; 5 a link is at fault; 128+n killed by signal n.`

const preflightExample = `  symmem preflight
  symmem preflight --ranks 8 --json --prometheus /var/lib/node_exporter/preflight.prom
  symmem launch -n 4 --no-prefix -- symmem preflight
  srun symmem preflight --timeout 60s && srun ./job`

type preflightFlags struct {
	rankFlags
	backend     string
	timeout     time.Duration // limit for each wait for other ranks
	deadline    time.Duration // limit for all checks together
	tolerance   float64       // fraction of the expected speed that a link or call must reach
	minLinkGBps float64       // minimum speed of links; 0 means no limit
	metricsFile string        // "" means no metrics
	json        bool
	startTime   time.Time // of this process
}

func newPreflightCommand() *cobra.Command {
	f := &preflightFlags{startTime: time.Now()}
	cmd := &cobra.Command{
		Use:     "preflight",
		Short:   "Check, before a job starts, that its ranks, GPUs and links work",
		Long:    preflightLong,
		Example: preflightExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd.Flags()); err != nil {
				return err
			}

			return f.run(cmd)
		},
	}
	f.addFlags(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	return cmd
}

func (f *preflightFlags) addFlags(flags *pflag.FlagSet) {
	addBackendFlag(flags, &f.backend)
	f.addRankFlags(flags, automaticRanks,
		"ranks to start, at most 64 (default: one per GPU, host 2)", &f.timeout)
	flags.Lookup("timeout").Usage += "; ranks have twice this time to start"
	flags.DurationVar(&f.deadline, "deadline", 5*time.Minute, "maximum duration of all checks")
	flags.Float64Var(&f.tolerance, "tolerance", 0.5,
		"fraction of the expected speed below which a link or call is at fault")
	flags.Float64Var(&f.minLinkGBps, "min-link", 0, "minimum speed of every link in GB/s")
	flags.StringVar(&f.metricsFile, "prometheus", "",
		"write metrics to a file, such as preflight.prom")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

// parse validates the flags and chooses the backend.
func (f *preflightFlags) parse(flags *pflag.FlagSet) error {
	isToleranceValid := f.tolerance >= 0 && f.tolerance < 1 // false for NaN
	isMinLinkValid := f.minLinkGBps >= 0                    // false for NaN
	switch {
	case flags.Changed("ranks") && (f.rankCount < 1 || f.rankCount > maxRanks):
		return fmt.Errorf("--ranks is %d, but must be from 1 to %d", f.rankCount, maxRanks)
	case f.deadline <= 0:
		return fmt.Errorf("--deadline is %v, but must be positive", f.deadline)
	case !isToleranceValid:
		return fmt.Errorf("--tolerance is %v, but must be at least 0 and less than 1", f.tolerance)
	case !isMinLinkValid:
		return fmt.Errorf("--min-link is %v, but must not be negative", f.minLinkGBps)
	case f.metricsFile == "" && flags.Changed("prometheus"):
		return errors.New("--prometheus needs the name of a file")
	}

	if err := checkTimeout(f.timeout); err != nil {
		return err
	}

	return chooseBackend(&f.backend)
}

// run runs the checks if a launcher has started this process as a rank, or else starts the ranks.
func (f *preflightFlags) run(cmd *cobra.Command) error {
	world, err := f.discoverWorld(cmd)
	if err != nil {
		return err
	}

	isRank := world.Source != rendezvous.SourceOneProcess
	if isRank {
		return f.runAsRank(cmd, world)
	}

	return f.startRanks(cmd)
}

// runAsRank runs the checks. A child rank prints its result for the parent. Under a launcher, one
// of the ranks prints the report.
func (f *preflightFlags) runAsRank(cmd *cobra.Command, world rendezvous.World) error {
	if err := divertLibraryOutput(cmd); err != nil {
		return err
	}

	stop := cancelOnSignal(cmd)
	defer stop()
	ctx, cancel := context.WithTimeout(cmd.Context(), f.deadline)
	defer cancel()
	rank := f.runChecks(ctx, world)
	if f.isChildRank {
		return reportToParent(cmd, rank.result)
	}

	report := f.judgeResults(rank.knownResults(), preflight.Options{
		Ranks: world.Size, FirstExit: noRank, // ranks do not know which of them exited first
	})
	var reportErr, metricsErr error
	if rank.isReporter() {
		reportErr = f.printReport(cmd, report)
	} else if rank.result.Error != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "[rank %d] %s\n", world.Rank, rank.result.Error)
	}

	isFirstOfNode := world.LocalRank == 0
	if isFirstOfNode {
		metricsErr = f.writeMetrics(report)
	}

	if err := errors.Join(reportErr, metricsErr); err != nil {
		return exitWith(exitIncomplete, err)
	}

	return exitWith(report.ExitCode(), nil)
}

// reportToParent prints this rank's result, which the parent process reads.
func reportToParent(cmd *cobra.Command, result preflight.RankResult) error {
	if err := printRankResult(cmd, result); err != nil {
		return err
	}

	if result.Error != "" {
		return exitWith(exitBadResult, nil) // an exit code makes the parent stop the other ranks
	}

	return nil
}

func (f *preflightFlags) printReport(cmd *cobra.Command, report *preflight.Report) error {
	return writeReport(cmd.OutOrStdout(), f.json, report)
}

// writeMetrics does nothing without --prometheus.
func (f *preflightFlags) writeMetrics(report *preflight.Report) error {
	if f.metricsFile == "" {
		return nil
	}

	return report.WriteMetrics(f.metricsFile)
}

// judgeResults judges the results by o and by the limits from the flags and the tuning table.
func (f *preflightFlags) judgeResults(
	results []preflight.RankResult, o preflight.Options,
) *preflight.Report {
	o.Tolerance = f.tolerance
	const bytesPerGB = 1e9
	o.MinLinkSpeed = f.minLinkGBps * bytesPerGB
	if len(results) > 0 {
		backend, device := results[0].Backend, results[0].Device
		file, isRequired := findTuningFile(device, o.Ranks)
		table, err := doctor.ReadTuning(backend, device, file, isRequired)
		if err == nil { // otherwise, NodeProblems contains the error
			o.Table = table
		}
	}

	report := preflight.Judge(results, o)
	report.Backend = cmp.Or(report.Backend, f.backend)
	report.Seconds = time.Since(f.startTime).Seconds()
	return report
}
