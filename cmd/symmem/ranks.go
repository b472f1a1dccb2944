package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/cmd/symmem/internal/bench"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

// backendNames returns the values of --backend.
func backendNames() []string { return append([]string{"auto"}, symmem.Backends()...) }

func joinedBackendNames() string { return strings.Join(backendNames(), ", ") }

// backendVariable is the environment variable that sets the default of Options.Backend.
const backendVariable = "SYMMEM_BACKEND"

func addBackendFlag(flags *pflag.FlagSet, value *string) {
	flags.StringVar(value, "backend", "", "backend to use: "+joinedBackendNames()+
		" (default $"+backendVariable+", else auto)")
}

// chooseBackend replaces an empty value of --backend by the value of SYMMEM_BACKEND. If this
// variable is empty as well, the value becomes auto. chooseBackend returns an error for an unknown
// backend.
func chooseBackend(value *string) error {
	errorPrefix := ""
	if *value == "" {
		*value = cmp.Or(os.Getenv(backendVariable), "auto")
		errorPrefix = backendVariable + ": " // an unknown backend can only be from the variable
	}

	if !slices.Contains(backendNames(), *value) {
		return fmt.Errorf("%sunknown backend %q: want one of %s", errorPrefix, *value,
			joinedBackendNames())
	}

	return nil
}

// childRankFlag is a hidden flag that the command passes to the ranks it starts, so that they do
// not start ranks in turn.
const childRankFlag = "started"

// errLauncherVariables is the error of a process that was started with childRankFlag, but without
// the environment variables that contain its rank.
var errLauncherVariables = errors.New("the launcher's environment variables are missing")

// maxRanks is the maximum number of ranks on one machine that the host backend supports.
const maxRanks = 64

// automaticRanks is the default of --ranks in commands that choose the number.
const automaticRanks = 0

// rankFlags holds the flags of commands that run as several ranks.
type rankFlags struct {
	rankCount   int            // the value of --ranks, or automaticRanks
	isUnbound   bool           // do not bind ranks to processors
	isChildRank bool           // the command started this process
	timeout     *time.Duration // where the command stores the value of --timeout
}

// addRankFlags adds the flags of rankFlags except --unbound. usage describes --ranks.
func (f *rankFlags) addRankFlags(
	flags *pflag.FlagSet, defaultRanks int, usage string, timeout *time.Duration,
) {
	f.timeout = timeout
	flags.IntVar(&f.rankCount, "ranks", defaultRanks, usage)
	flags.DurationVar(timeout, "timeout", 30*time.Second, "maximum wait for another rank")
	flags.BoolVar(&f.isChildRank, childRankFlag, false,
		"this process was started as a rank by the command")
	cobra.CheckErr(flags.MarkHidden(childRankFlag))
}

// addBenchRankFlags adds all flags of rankFlags, for commands that measure times.
func (f *rankFlags) addBenchRankFlags(flags *pflag.FlagSet, timeout *time.Duration) {
	const defaultRanks = 2
	f.addRankFlags(flags, defaultRanks, "processes to start, at most 64", timeout)
	flags.BoolVar(&f.isUnbound, "unbound", false, "do not bind ranks to processors")
}

// checkRanks checks the values of --ranks and --timeout.
func (f *rankFlags) checkRanks(minRanks int) error {
	if f.rankCount < minRanks || f.rankCount > maxRanks {
		return fmt.Errorf("--ranks is %d, but must be from %d to %d", f.rankCount, minRanks, maxRanks)
	}

	return checkTimeout(*f.timeout)
}

func checkTimeout(timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout is %v, but must be positive", timeout)
	}

	return nil
}

// bindRank binds this process to the processor of its rank, unless --unbound is set.
func (f *rankFlags) bindRank(w rendezvous.World) error {
	if f.isUnbound {
		return nil
	}

	return bench.BindRank(w.LocalRank)
}

// runAsRanks calls runRank if this process is a rank, and starts the ranks if not.
func (f *rankFlags) runAsRanks(cmd *cobra.Command, runRank func(rendezvous.World) error) error {
	world, err := f.discoverWorld(cmd)
	if err != nil {
		return err
	}

	if world.Source == rendezvous.SourceOneProcess {
		return startRanks(cmd, f.rankCount)
	}

	if err := divertLibraryOutput(cmd); err != nil {
		return err
	}

	stop := cancelOnSignal(cmd)
	defer stop()
	err = runRank(world)
	hasExitCode := errors.As(err, new(*exitError))
	if err == nil || hasExitCode {
		return err
	}

	return exitWith(exitIncomplete, fmt.Errorf("rank %d: %w", world.Rank, err))
}

// cancelOnSignal cancels a command's context at the first signal, so that the command can report
// its partial results. A second signal ends the process.
func cancelOnSignal(cmd *cobra.Command) (stop func()) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // after the first signal, a second one has its usual effect
	cmd.SetContext(ctx)
	return stop
}

// discoverWorld returns this process's rank and world: the set of all ranks that run together. If
// no launcher has started the process, the Source of the world is SourceOneProcess.
func (f *rankFlags) discoverWorld(cmd *cobra.Command) (rendezvous.World, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return world, exitWith(exitIncomplete, err)
	}

	if world.Source == rendezvous.SourceOneProcess {
		if f.isChildRank {
			return world, exitWith(exitIncomplete, errLauncherVariables)
		}

		return world, nil
	}

	if cmd.Flags().Changed("ranks") && f.rankCount != world.Size {
		return world, fmt.Errorf("%s has started %d ranks: remove --ranks %d",
			world.Source, world.Size, f.rankCount)
	}

	return world, nil
}

// divertLibraryOutput reserves standard output for the command. The output of libraries, such as
// NCCL's log, goes to standard error.
func divertLibraryOutput(cmd *cobra.Command) error {
	commandOutput, ok := cmd.OutOrStdout().(*output)
	if !ok || commandOutput.Writer != os.Stdout {
		return nil // in tests, the output is not standard output
	}

	stdout, err := sys.TakeStdout()
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	commandOutput.Writer = stdout
	return nil
}

// noSharingAnnotation is the key of an annotation of commands whose ranks must not share GPUs. The
// annotation's value is the reason.
const noSharingAnnotation = "no-sharing"

// startRanks launches this program once for each rank, with the same flags, and waits for them.
func startRanks(cmd *cobra.Command, requestedRanks int) error {
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("finding this program: %w", err))
	}

	command := childCommand(cmd, self)
	backend := cmd.Flag("backend").Value.String()
	isExplicit := cmd.Flags().Changed("ranks")
	ranks, plan, err := planRanks(requestedRanks, isExplicit, backend)
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	prohibition := cmd.Annotations[noSharingAnnotation]
	if plan != nil && prohibition != "" {
		return exitWith(exitIncomplete, fmt.Errorf("%d ranks on %s: %s", ranks,
			plan.gpuCountText(), prohibition))
	}

	spec := launch.Spec{
		Ranks: ranks, Command: command, OmitPrefix: true,
		Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	counter := &progressCounter{terminal: cmd.ErrOrStderr()} // shows nothing unless it is used
	if isTerminal(cmd.ErrOrStderr()) {
		spec.Stderr = counter
		spec.Env = append(os.Environ(), progressVariable+"=lines")
	}

	result, err := runRanks(cmd.Context(), spec, plan)
	counter.end()
	if err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("starting the ranks: %w", err))
	}

	return exitErrorOf(cmd.ErrOrStderr(), &result)
}

// childCommand returns the command for a rank: program self, cmd with the flags that the user has
// set, and childRankFlag.
func childCommand(cmd *cobra.Command, self string) []string {
	subcommands := strings.Fields(cmd.CommandPath())[1:] // after the program's name
	command := append([]string{self}, subcommands...)
	command = append(command, "--"+childRankFlag)
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		list, isList := flag.Value.(pflag.SliceValue)
		if !isList {
			command = append(command, "--"+flag.Name+"="+flag.Value.String())
			return
		}

		for _, element := range list.GetSlice() {
			command = append(command, "--"+flag.Name+"="+element)
		}
	})
	return command
}

// exitErrorOf returns an error with the command's exit code, or nil if the code is 0. After a
// signal, the code is 128 plus the signal's number. Otherwise, it is the largest exit code of a
// rank, or exitIncomplete if a rank crashed. exitErrorOf prints how ranks crashed.
func exitErrorOf(stderr io.Writer, result *launch.Result) error {
	if isInterrupted(result) {
		return exitWith(128+int(result.Signal), nil)
	}

	code := exitOK
	for _, e := range result.Exits {
		isCrash := e.Signal != 0 || e.Code > exitIncomplete // ranks use no larger code
		if isCrash {
			fmt.Fprintf(stderr, "symmem: %v\n", e)
			code = exitIncomplete
		} else {
			code = max(code, e.Code)
		}
	}

	return exitWith(code, nil)
}

// isInterrupted reports whether a signal to this process stopped the ranks. It also returns true
// if the reader of standard output has exited.
func isInterrupted(result *launch.Result) bool {
	if result.Signal == syscall.SIGPIPE {
		return true
	}

	const none = -1
	haveFailed := result.FirstFailed != none // otherwise, all ranks finished despite the signal
	return result.Signal != 0 && haveFailed
}
