package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/nccl"
	"symmem/internal/rendezvous"
)

const doctorLong = `doctor says what of this machine lets symmem run, what does not, and what to do.

It looks at the driver, the GPUs, NCCL and its known defects, whether ranks can share a GPU, the
links between GPUs, limits, the system's calls, the environment, the launcher's variables and the
tuning table. Then a trial: it starts ranks that open the backend, register one segment and
all-reduce 4 KiB and 16 MiB of it on the window path, on the plain one and, on GPUs, on the direct
one. Sums are checked, and NCCL's own log shows which of its kernels ran.
Started by a launcher (torchrun, mpirun, srun), it is one rank of the trial, and rank 0 reports
about its own machine; the other ranks say only what went wrong on them. With --trial=false the
first rank of each machine reports about it.

Each finding is ok, warn (it works, but not as well as it could) or fail, with what to do. Without a
GPU it says so, and examines the host backend. Multicast is reported, and never used.

--json prints one object: the findings by section, and the facts that they are about, whose fields
docs/reference/json.md lists. Variables that hold secrets are not shown.

Exit codes: 0 nothing failed; 1 something failed; 2 doctor itself could not run; 128 + n it was
ended by signal n.`

const doctorExample = `  symmem doctor
  symmem doctor --backend nccl --ranks 2 --json
  symmem doctor --nccl /opt/nccl/lib/libnccl.so.2
  symmem doctor --trial=false
  torchrun --nproc-per-node 4 --no-python symmem doctor`

// doctorFlags are the flags of doctor as they are given.
type doctorFlags struct {
	rankFlags
	backend string
	library string
	timeout time.Duration
	trial   bool
	json    bool
}

func newDoctorCommand() *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Say what lets symmem run here, what does not, and what to do",
		Long:    doctorLong,
		Example: doctorExample,
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

func (f *doctorFlags) register(flags *pflag.FlagSet) {
	backendFlag(flags, &f.backend)
	f.registerRanks(flags, 0, "ranks of the trial, up to 64 (default one for each GPU, host 2)",
		&f.timeout)
	flags.StringVar(&f.library, "nccl", "", "file of NCCL (default as symmem finds it)")
	flags.BoolVar(&f.trial, "trial", true, "start ranks, and all-reduce on them")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *doctorFlags) parse(flags *pflag.FlagSet) error {
	if flags.Changed("ranks") && (f.ranks < 1 || f.ranks > maxRanks) {
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", f.ranks, maxRanks)
	}
	if err := checkTimeout(f.timeout); err != nil {
		return err
	}
	if err := chooseBackend(&f.backend); err != nil {
		return err
	}
	if f.library == "" {
		return nil
	}
	// Ranks that are started inherit it.
	if err := os.Setenv(nccl.PathVariable, f.library); err != nil {
		return exitWith(exitUsage, fmt.Errorf("setting %s: %w", nccl.PathVariable, err))
	}
	return nil
}

// run is one rank of a trial, or the doctor of this machine.
func (f *doctorFlags) run(cmd *cobra.Command) error {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	alone := err != nil || world.Source == rendezvous.SourceAlone
	if !alone {
		if err := keepStdout(cmd); err != nil {
			return err
		}
	}
	switch {
	case f.started && alone:
		return exitWith(exitUsage, errors.New("this rank has lost the variables of its launcher"))
	case f.started:
		return f.writeAccount(cmd, world)
	case alone:
		return f.examine(cmd, f.startTrial)
	case f.ranks != 0 && f.ranks != world.Size:
		return fmt.Errorf("%s has started %d ranks, so leave --ranks %d out",
			world.Source, world.Size, f.ranks)
	}
	return f.join(cmd, world)
}

// join takes part in the trial of a launcher's ranks. It comes before anything else is looked at,
// since that loads NCCL, and rank 0 reports. Without a trial the first rank of each machine does.
func (f *doctorFlags) join(cmd *cobra.Command, world rendezvous.World) error {
	if !f.trial {
		if world.LocalRank != 0 {
			return nil
		}
		return f.examine(cmd, nil)
	}
	account := runTrial(cmd.Context(), world, f.backend, f.timeout)
	if world.Rank == 0 {
		return f.examine(cmd, func(*cobra.Command, *doctor.Facts) (*doctor.Trial, error) {
			return doctor.Join(world.Size, []doctor.Account{account}, nil), nil
		})
	}
	if account.Error == "" {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "[rank %d] %s\n", world.Rank, account.Error)
	return exitWith(exitWrong, nil)
}

// examine looks at this machine, has the trial run, and reports.
func (f *doctorFlags) examine(
	cmd *cobra.Command, trial func(*cobra.Command, *doctor.Facts) (*doctor.Trial, error),
) error {
	facts := f.look()
	broken := facts.Backend == "nccl" && (facts.Driver.Error != "" || facts.Library.Error != "")
	var interrupted error
	if f.trial && !broken && facts.Launcher.Error == "" {
		facts.Trial, interrupted = trial(cmd, facts)
	}
	facts.Tuning = f.table(facts)
	report := doctor.Examine(facts)
	if err := writeReport(cmd.OutOrStdout(), f.json, report, report.WriteText); err != nil {
		return exitWith(exitUsage, err)
	}
	if interrupted != nil {
		return interrupted
	}
	if report.Verdict == doctor.Fail {
		return exitWith(exitWrong, nil)
	}
	return nil
}

// look gathers all but the trial and the table.
func (f *doctorFlags) look() *doctor.Facts {
	facts := &doctor.Facts{
		Asked: f.backend, GPUs: []doctor.GPU{}, Links: doctor.LookAtLinks(nil),
		Limits: doctor.LookAtLimits(), Host: doctor.LookAtHost(),
		Variables: doctor.LookAtVariables(os.Environ()),
		Launcher:  doctor.LookAtLauncher(os.LookupEnv),
	}
	if f.backend != "host" {
		facts.Driver, facts.GPUs = doctor.LookAtDriver()
		facts.Library = doctor.LookAtLibrary()
		facts.Sharing = doctor.LookAtSharing(facts.GPUs, &facts.Library, os.Getenv)
		facts.Links = doctor.LookAtLinks(facts.GPUs)
	}
	facts.Choose()
	return facts
}

// table is the tuning table that symmem.Open would take for these ranks.
func (f *doctorFlags) table(facts *doctor.Facts) doctor.Tuning {
	ranks, device := max(f.ranks, facts.Launcher.Size), ""
	if t := facts.Trial; t != nil {
		ranks, device = t.Ranks, t.Device
	}
	if device == "" && len(facts.GPUs) > 0 && facts.Backend == "nccl" {
		device = facts.GPUs[0].Name
	}
	file := os.Getenv("SYMMEM_TUNING")
	switch {
	case file != "" && file != symmem.BuiltInTuning:
		return doctor.LookAtTuning(facts.Backend, device, ranks, file, true)
	case file != "" || device == "":
		return doctor.LookAtTuning(facts.Backend, device, ranks, "", false)
	}
	file, err := symmem.TuningFile(device, ranks)
	if err != nil {
		file = "" // without a home there is no table
	}
	return doctor.LookAtTuning(facts.Backend, device, ranks, file, false)
}

// patience bounds a whole trial: it has some waits for other ranks, and the start of contexts and
// communicators.
func (f *doctorFlags) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 4*f.timeout+time.Minute)
}
