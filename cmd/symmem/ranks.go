package main

import (
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

func backendNames() []string { return append([]string{"auto"}, symmem.Backends()...) }

func backendList() string { return strings.Join(backendNames(), ", ") }

// envBackend is the environment variable that sets the default of Options.Backend.
const envBackend = "SYMMEM_BACKEND"

func backendFlag(flags *pflag.FlagSet, value *string) {
	flags.StringVar(value, "backend", "", "backend to use: "+backendList()+
		" (default $"+envBackend+", else auto)")
}

// chooseBackend replaces an empty value with SYMMEM_BACKEND or, if this variable is empty, with
// auto. It returns an error for an unknown backend.
func chooseBackend(value *string) error {
	source := ""
	if *value == "" {
		if *value = os.Getenv(envBackend); *value == "" {
			*value = "auto"
			return nil
		}
		source = envBackend + ": "
	}
	if !slices.Contains(backendNames(), *value) {
		return fmt.Errorf("%sunknown backend %q: want one of %s", source, *value, backendList())
	}
	return nil
}

// startedFlag is the hidden flag of ranks that this command has started. A process with this flag
// never starts ranks.
const startedFlag = "started"

var errLauncherVariables = errors.New("the launcher's environment variables are missing")

// maxRanks is the maximum number of ranks on one machine. The host backend supports no more.
const maxRanks = 64

type rankFlags struct {
	ranks            int
	unbound          bool
	startedByCommand bool
	timeout          *time.Duration
}

func (f *rankFlags) registerRanks(
	flags *pflag.FlagSet, ranks int, usage string, timeout *time.Duration,
) {
	f.timeout = timeout
	flags.IntVar(&f.ranks, "ranks", ranks, usage)
	flags.DurationVar(timeout, "timeout", 30*time.Second, "maximum wait for another rank")
	flags.BoolVar(&f.startedByCommand, startedFlag, false,
		"this process was started as a rank by the command")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
}

func (f *rankFlags) registerTimed(flags *pflag.FlagSet, timeout *time.Duration) {
	f.registerRanks(flags, 2, "processes to start, at most 64", timeout)
	flags.BoolVar(&f.unbound, "unbound", false, "do not bind ranks to processors")
}

func (f *rankFlags) checkRanks(minRanks int) error {
	if f.ranks < minRanks || f.ranks > maxRanks {
		return fmt.Errorf("--ranks is %d, but must be from %d to %d", f.ranks, minRanks, maxRanks)
	}
	return checkTimeout(*f.timeout)
}

func checkTimeout(timeout time.Duration) error {
	if timeout <= 0 {
		return fmt.Errorf("--timeout is %v, but must be positive", timeout)
	}
	return nil
}

// bind binds the process to its rank's processor unless --unbound is set.
func (f *rankFlags) bind(w rendezvous.World) error {
	if f.unbound {
		return nil
	}
	return bench.BindRank(w.LocalRank)
}

// asRanks calls rank if a launcher has started this process. If not, it starts the ranks.
func (f *rankFlags) asRanks(cmd *cobra.Command, rank func(rendezvous.World) error) error {
	world, err := f.discover(cmd)
	if err != nil {
		return err
	}
	if world.Source == rendezvous.SourceOneProcess {
		return startRanks(cmd, f.ranks)
	}
	defer cancelOnSignal(cmd)()
	if err := rank(world); err != nil {
		if errors.As(err, new(*exitError)) {
			return err
		}
		return exitWith(exitUsage, fmt.Errorf("rank %d: %w", world.Rank, err))
	}
	return nil
}

// cancelOnSignal cancels a command's context at the first signal, so that the command can report
// its partial results. A second signal ends the process.
func cancelOnSignal(cmd *cobra.Command) (stop func()) {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	cmd.SetContext(ctx)
	return stop
}

// discover returns this process's rank and world, and calls keepStdout if a launcher has started
// the process.
func (f *rankFlags) discover(cmd *cobra.Command) (rendezvous.World, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return world, exitWith(exitUsage, err)
	}
	if world.Source == rendezvous.SourceOneProcess {
		if f.startedByCommand {
			err = exitWith(exitUsage, errLauncherVariables)
		}
		return world, err
	}
	if cmd.Flags().Changed("ranks") && f.ranks != world.Size {
		return world, fmt.Errorf("%s has started %d ranks: remove --ranks %d",
			world.Source, world.Size, f.ranks)
	}
	return world, keepStdout(cmd)
}

// keepStdout reserves standard output for the command, and sends NCCL's log to standard error.
func keepStdout(cmd *cobra.Command) error {
	out, ok := cmd.OutOrStdout().(*output)
	if !ok || out.Writer != os.Stdout {
		return nil
	}
	stdout, err := sys.TakeStdout()
	if err != nil {
		return exitWith(exitUsage, err)
	}
	out.Writer = stdout
	return nil
}

// noSharingAnnotation is the annotation of a command whose ranks must not share GPUs. Its value is
// the reason.
const noSharingAnnotation = "no-sharing"

// startRanks launches this program once for each rank, with the same flags.
func startRanks(cmd *cobra.Command, ranks int) error {
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("finding this program: %w", err))
	}
	backend := cmd.Flag("backend").Value.String()
	ranks, shared, err := ranksOnGPUs(ranks, cmd.Flags().Changed("ranks"), backend)
	if err == nil && shared != nil && cmd.Annotations[noSharingAnnotation] != "" {
		err = fmt.Errorf("%d ranks on %s: %s", ranks, shared.machine(),
			cmd.Annotations[noSharingAnnotation])
	}
	if err != nil {
		return exitWith(exitUsage, err)
	}
	command := append([]string{self}, strings.Fields(cmd.CommandPath())[1:]...)
	command = append(command, "--"+startedFlag)
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			for _, v := range list.GetSlice() {
				command = append(command, "--"+flag.Name+"="+v)
			}
			return
		}
		command = append(command, "--"+flag.Name+"="+flag.Value.String())
	})
	spec := launch.Spec{
		Ranks: ranks, Command: command, Plain: true,
		Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	counter := &progressCounter{terminal: cmd.ErrOrStderr()}
	if isTerminal(cmd.ErrOrStderr()) {
		spec.Stderr, spec.Env = counter, append(os.Environ(), envProgress+"=lines")
	}
	result, err := runRanks(cmd.Context(), spec, shared)
	counter.end()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("starting the ranks: %w", err))
	}
	return verdict(cmd.ErrOrStderr(), &result)
}

// verdict returns an error with the exit code, or nil if this code is 0. If a signal interrupted
// the ranks, the code is 128 plus the number of the signal. In all other cases, it is the largest
// exit code of any rank; a killed rank counts as exitUsage.
func verdict(stderr io.Writer, result *launch.Result) error {
	if interrupted(result) {
		return exitWith(128+int(result.Signal), nil)
	}
	code := exitOK
	for _, e := range result.Exits {
		switch {
		case e.Signal != 0 || e.Code > exitUsage:
			fmt.Fprintf(stderr, "symmem: %v\n", e)
			code = exitUsage
		default:
			code = max(code, e.Code)
		}
	}
	return exitWith(code, nil)
}

// interrupted reports whether a signal to this process stopped the ranks, or standard output was
// closed. An interrupted rank may exit with any code.
func interrupted(result *launch.Result) bool {
	return result.Signal == syscall.SIGPIPE || result.Signal != 0 && result.First >= 0
}
