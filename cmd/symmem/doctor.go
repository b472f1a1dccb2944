package main

import (
	"context"
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

const doctorLong = `doctor checks this machine for problems and suggests fixes.

It checks the driver, the GPUs, NCCL and its known defects, whether ranks can share a GPU, the links
between GPUs, resource limits, the required system calls, the environment, the variables of the
launcher, and the tuning table.

Then it runs a trial: ranks open the backend, register memory and all-reduce 4 KiB and 16 MiB of it
on each path: window, plain and, on GPUs, direct. doctor checks the sums, and reads from NCCL's log
which kernels ran. Without a GPU, the trial uses the host backend.

If a launcher (torchrun, mpirun, srun) starts doctor, each process is one rank of the trial. Rank 0
reports on its machine; the other ranks print only their errors. With --trial=false, the first rank
of each machine reports on it.

Each finding is ok, warn (it works, but not as well as it could) or fail. doctor reports whether the
GPUs support multicast, but symmem never uses it.

--json prints one object with the findings and the facts on which they are based. Its fields are
listed in docs/reference/json.md. Variables that hold secrets are not shown.

Exit codes: 0 nothing failed; 1 something failed; 2 doctor could not run; 128+n killed by signal n.`

const doctorExample = `  symmem doctor
  symmem doctor --backend nccl --ranks 2 --json
  symmem doctor --nccl /opt/nccl/lib/libnccl.so.2
  symmem doctor --trial=false
  torchrun --nproc-per-node 4 --no-python symmem doctor`

type doctorFlags struct {
	rankFlags
	backend      string
	ncclPath     string        // "" for the library that symmem finds
	timeout      time.Duration // maximum wait for another rank
	trialEnabled bool
	json         bool
}

func newDoctorCommand() *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:     "doctor",
		Short:   "Check this machine for problems and suggest fixes",
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
	f.addFlags(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	return cmd
}

func (f *doctorFlags) addFlags(flags *pflag.FlagSet) {
	addBackendFlag(flags, &f.backend)
	f.addRankFlags(flags, automaticRanks,
		"ranks of the trial, at most 64 (default: one per GPU, host 2)", &f.timeout)
	flags.StringVar(&f.ncclPath, "nccl", "",
		"path of the NCCL library (default: the one that symmem finds)")
	flags.BoolVar(&f.trialEnabled, "trial", true, "start ranks and run all-reduces on them")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

// parse checks the values of flags, and sets defaults. It sets an environment variable to the value
// of --nccl.
func (f *doctorFlags) parse(flags *pflag.FlagSet) error {
	isInRange := f.rankCount >= 1 && f.rankCount <= maxRanks
	if flags.Changed("ranks") && !isInRange {
		return fmt.Errorf("--ranks is %d, but must be from 1 to %d", f.rankCount, maxRanks)
	}

	if err := checkTimeout(f.timeout); err != nil {
		return err
	}

	if err := chooseBackend(&f.backend); err != nil {
		return err
	}

	if f.ncclPath == "" {
		return nil
	}

	// Ranks started by doctor inherit the variable.
	if err := os.Setenv(nccl.PathVariable, f.ncclPath); err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("setting %s: %w", nccl.PathVariable, err))
	}

	return nil
}

// run takes part in a trial if doctor or a launcher started this process as a rank. Otherwise, it
// reports on this machine, and starts the ranks of the trial.
func (f *doctorFlags) run(cmd *cobra.Command) error {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	// doctor reports wrong variables of a launcher (err) as a finding.
	isRank := err == nil && world.Source != rendezvous.SourceOneProcess
	if !isRank {
		if f.isChildRank {
			return exitWith(exitIncomplete, errLauncherVariables)
		}

		return f.reportFindings(cmd, f.launchTrial)
	}

	if err := divertLibraryOutput(cmd); err != nil {
		return err
	}

	if f.isChildRank {
		return printRankResult(cmd, runTrial(cmd.Context(), world, f.backend, f.timeout))
	}

	if f.rankCount != automaticRanks && f.rankCount != world.Size {
		return fmt.Errorf("%s has started %d ranks: remove --ranks %d",
			world.Source, world.Size, f.rankCount)
	}

	return f.runAsLaunchedRank(cmd, world)
}

// runAsLaunchedRank runs the trial on a rank that a launcher has started. Rank 0 then reports on
// its machine. The trial is first, because it sets variables that NCCL reads only once.
func (f *doctorFlags) runAsLaunchedRank(cmd *cobra.Command, world rendezvous.World) error {
	if !f.trialEnabled {
		if world.LocalRank != 0 {
			return nil
		}

		return f.reportFindings(cmd, nil) // does not call its second argument without a trial
	}

	result := runTrial(cmd.Context(), world, f.backend, f.timeout)
	if world.Rank == 0 {
		trial := doctor.NewTrial(world.Size, []doctor.RankResult{result}, nil)
		return f.reportFindings(cmd, func(*cobra.Command, *doctor.Facts) (*doctor.Trial, error) {
			return trial, nil
		})
	}

	if result.Error == "" {
		return nil
	}

	fmt.Fprintf(cmd.ErrOrStderr(), "[rank %d] %s\n", world.Rank, result.Error)
	return exitWith(exitBadResult, nil)
}

// reportFindings examines this machine and prints the findings. makeTrial returns the results of a
// trial. It is not called if the flags or problems of the machine prevent a trial. It returns an
// error only if a signal has interrupted the trial. reportFindings prints, and then returns it.
func (f *doctorFlags) reportFindings(
	cmd *cobra.Command, makeTrial func(*cobra.Command, *doctor.Facts) (*doctor.Trial, error),
) error {
	facts := f.collectFacts()
	lacksLibrary := facts.Driver.Error != "" || facts.Library.Error != ""
	isUnusable := facts.Backend == "nccl" && lacksLibrary
	hasLauncherError := facts.Launcher.Error != ""
	var interruptErr error
	if f.trialEnabled && !isUnusable && !hasLauncherError {
		facts.Trial, interruptErr = makeTrial(cmd, facts)
	}

	facts.Tuning = f.inspectTuning(facts)
	report := doctor.Examine(facts)
	if err := writeReport(cmd.OutOrStdout(), f.json, report); err != nil {
		return exitWith(exitIncomplete, err)
	}

	if interruptErr != nil {
		return interruptErr
	}

	if report.Verdict == doctor.Fail {
		return exitWith(exitBadResult, nil)
	}

	return nil
}

// collectFacts collects all facts except the trial and the tuning table.
func (f *doctorFlags) collectFacts() *doctor.Facts {
	facts := &doctor.Facts{
		RequestedBackend: f.backend, GPUs: []doctor.GPU{}, Links: doctor.InspectLinks(nil),
		Limits: doctor.InspectLimits(), Host: doctor.InspectHost(),
		Variables: doctor.InspectVariables(os.Environ()),
		Launcher:  doctor.InspectLauncher(os.LookupEnv),
	}
	if f.backend != "host" {
		facts.Driver, facts.GPUs = doctor.InspectDriver()
		facts.Library = doctor.InspectLibrary()
		facts.Sharing = doctor.InspectSharing(facts.GPUs, &facts.Library, os.Getenv)
		facts.Links = doctor.InspectLinks(facts.GPUs)
	}

	facts.ChooseBackend()
	return facts
}

// inspectTuning checks the tuning table for the trial's device and number of ranks. Without a
// trial, it uses the first GPU.
func (f *doctorFlags) inspectTuning(facts *doctor.Facts) doctor.Tuning {
	ranks := max(f.rankCount, facts.Launcher.Size) // those that are not set are 0
	device := ""
	if facts.Trial != nil {
		ranks = facts.Trial.Ranks
		device = facts.Trial.Device
	}

	if device == "" && len(facts.GPUs) > 0 && facts.Backend == "nccl" {
		device = facts.GPUs[0].Name
	}

	file, isRequired := findTuningFile(device, ranks)
	return doctor.InspectTuning(facts.Backend, device, ranks, file, isRequired)
}

// findTuningFile returns the path of the tuning table that symmem.Open would use, or "" for the
// built-in table. If isRequired is true, a missing file is an error, because the user has named it.
func findTuningFile(device string, ranks int) (file string, isRequired bool) {
	value := os.Getenv("SYMMEM_TUNING")
	if value == symmem.BuiltInTuning {
		return "", false
	}

	if value != "" {
		return value, true
	}

	if device == "" { // the name of the user's table contains the device
		return "", false
	}

	file, err := symmem.TuningFile(device, ranks)
	if err != nil { // without a home directory, there is no user's table
		return "", false
	}

	return file, false
}

// trialContext limits the duration of a trial. A rank waits for others about four times.
func (f *doctorFlags) trialContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 4*f.timeout+time.Minute)
}
