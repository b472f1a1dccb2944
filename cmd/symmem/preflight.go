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

const preflightLong = `preflight checks before a job that its ranks can work together.

It starts the ranks, or, started by a launcher (symmem launch, torchrun, mpirun, srun, Kubernetes),
is one of them; it needs neither MPI nor ssh. Each rank opens the backend and all-reduces 4 KiB and
16 MiB on each path. Sums must be right, and times at most those of the tuning table divided by
--tolerance, if the table has times for these calls. Then each pair of ranks exchanges messages of
4 MiB (1 MiB on the host). A link is slow if it has less than --tolerance times the speed of fast
links of its kind (within a node, or between nodes) in three measurements. The first rank of each
node also reports what symmem doctor finds there.

The report names the node, the rank with its GPU, or the link at fault. If most links of a rank are
slow, the rank is at fault. The only link of two ranks is not compared; --min-link sets a limit for
all links. Under a launcher rank 0 prints the report, or the lowest rank that is not lost. The other
ranks print their errors on standard error.

--prometheus writes a file for the textfile collector of node_exporter on each node. The fields of
--json are listed in docs/reference/json.md.

Exit codes: 0 ready; 1 wrong sums or slow calls; 2 preflight could not run; 3 a node is at fault; 4
a rank or its GPU; 5 a link; 128 + n it was ended by signal n.`

const preflightExample = `  symmem preflight
  symmem preflight --ranks 8 --json --prometheus /var/lib/node_exporter/preflight.prom
  symmem launch -n 4 --no-prefix -- symmem preflight
  srun symmem preflight --timeout 60s && srun ./job`

type preflightFlags struct {
	rankFlags
	backend    string
	timeout    time.Duration
	deadline   time.Duration
	tolerance  float64
	minLink    float64
	prometheus string
	json       bool
	began      time.Time
}

func newPreflightCommand() *cobra.Command {
	f := &preflightFlags{began: time.Now()}
	cmd := &cobra.Command{
		Use:     "preflight",
		Short:   "Check before a job that its ranks, GPUs and links work",
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
	f.register(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	return cmd
}

func (f *preflightFlags) register(flags *pflag.FlagSet) {
	backendFlag(flags, &f.backend)
	f.registerRanks(flags, 0, "ranks to start, up to 64 (default one for each GPU, host 2)",
		&f.timeout)
	flags.Lookup("timeout").Usage += "; twice as long for all to start"
	flags.DurationVar(&f.deadline, "deadline", 5*time.Minute, "longest duration of all checks")
	flags.Float64Var(&f.tolerance, "tolerance", 0.5,
		"fraction of the expected speed below which a link or call is at fault")
	flags.Float64Var(&f.minLink, "min-link", 0, "GB/s below which every link is at fault")
	flags.StringVar(&f.prometheus, "prometheus", "", "write metrics to a file, such as preflight.prom")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *preflightFlags) parse(flags *pflag.FlagSet) error {
	switch {
	case flags.Changed("ranks") && (f.ranks < 1 || f.ranks > maxRanks):
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", f.ranks, maxRanks)
	case f.deadline <= 0:
		return fmt.Errorf("deadline is %v, but must be positive", f.deadline)
	case !(f.tolerance >= 0 && f.tolerance < 1):
		return fmt.Errorf("tolerance is %v, but must be at least 0 and less than 1", f.tolerance)
	case !(f.minLink >= 0):
		return fmt.Errorf("min-link is %v, but must not be negative", f.minLink)
	case f.prometheus == "" && flags.Changed("prometheus"):
		return errors.New("--prometheus needs the name of a file")
	}
	if err := checkTimeout(f.timeout); err != nil {
		return err
	}
	return chooseBackend(&f.backend)
}

// run runs the checks as one rank, or starts the ranks.
func (f *preflightFlags) run(cmd *cobra.Command) error {
	world, err := f.discover(cmd)
	if err != nil {
		return err
	}
	if world.Source == rendezvous.SourceAlone {
		return f.startRanks(cmd)
	}
	defer cancelOnSignal(cmd)()
	ctx, cancel := context.WithTimeout(cmd.Context(), f.deadline)
	defer cancel()
	r := f.check(ctx, world)
	if f.started {
		if err := printAccount(cmd, r.account); err != nil || r.account.Error == "" {
			return err
		}
		return exitWith(exitWrong, nil) // makes the launcher end ranks that are still running
	}
	report := f.judge(r.accounts(), preflight.Options{Ranks: world.Size, First: -1})
	if !r.reports() && r.account.Error != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "[rank %d] %s\n", world.Rank, r.account.Error)
	}
	if err := f.write(cmd, report, r.reports(), world.LocalRank == 0); err != nil {
		return exitWith(exitUsage, err)
	}
	return exitWith(report.Code(), nil)
}

// write prints the report if reports is set. The first rank of each node also writes the metrics.
func (f *preflightFlags) write(
	cmd *cobra.Command, report *preflight.Report, reports, firstOfNode bool,
) (err error) {
	if reports {
		err = writeReport(cmd.OutOrStdout(), f.json, report, report.WriteText)
	}
	if firstOfNode && f.prometheus != "" {
		err = errors.Join(err, report.WriteMetrics(f.prometheus))
	}
	return err
}

// judge builds the report.
func (f *preflightFlags) judge(
	accounts []preflight.Account, o preflight.Options,
) *preflight.Report {
	o.Tolerance, o.MinLink = f.tolerance, f.minLink*1e9
	if len(accounts) > 0 {
		file, required := tuningFile(accounts[0].Device, o.Ranks)
		table, err := doctor.ReadTuning(accounts[0].Backend, accounts[0].Device, file, required)
		if err == nil { // Otherwise Open has returned the error.
			o.Table = table
		}
	}
	report := preflight.Judge(accounts, o)
	report.Backend = cmp.Or(report.Backend, f.backend)
	report.Seconds = time.Since(f.began).Seconds()
	return report
}
