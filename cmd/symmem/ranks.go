package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

// backendNames are what --backend takes.
func backendNames() []string { return append([]string{"auto"}, symmem.Backends()...) }

func backendList() string { return strings.Join(backendNames(), ", ") }

// envBackend is where Options.Backend comes from unless a program gives it.
const envBackend = "SYMMEM_BACKEND"

// backendFlag adds the flag, whose value chooseBackend takes.
func backendFlag(flags *pflag.FlagSet, value *string, otherwise string) {
	flags.StringVar(value, "backend", "", "where memory comes from: "+backendList()+
		" (default $"+envBackend+", else "+otherwise+")")
}

// chooseBackend takes the flag, else the variable, else what is named; it may be empty. It refuses
// a backend that this program does not have.
func chooseBackend(given *string, otherwise string) error {
	from := ""
	if *given == "" {
		if *given = os.Getenv(envBackend); *given == "" {
			*given = otherwise
			return nil
		}
		from = envBackend + ": "
	}
	if !slices.Contains(backendNames(), *given) {
		return fmt.Errorf("%sbackend %q is none of %s", from, *given, backendList())
	}
	return nil
}

// startedFlag is the hidden flag of the ranks that a command has started. Such a rank never starts
// others, even if it has lost the environment that says which rank it is.
const startedFlag = "started"

// asRanks runs a command as one rank if a launcher has started this process, else starts so many
// ranks of the same command.
func asRanks(
	cmd *cobra.Command, ranks int, started bool, rank func(rendezvous.World) error,
) error {
	world, err := discover(cmd, ranks, started)
	if err != nil {
		return err
	}
	if world.Source == rendezvous.SourceAlone {
		return startRanks(cmd, ranks)
	}
	if err := rank(world); err != nil {
		if errors.As(err, new(*exitError)) {
			return err
		}
		return exitWith(exitUsage, fmt.Errorf("rank %d: %w", world.Rank, err))
	}
	return nil
}

// discover returns which rank this process is, if a launcher has started it. A rank keeps standard
// output for its command.
func discover(cmd *cobra.Command, ranks int, started bool) (rendezvous.World, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return world, exitWith(exitUsage, err)
	}
	if world.Source == rendezvous.SourceAlone {
		if started {
			err = exitWith(exitUsage, errors.New("this rank has lost the variables of its launcher"))
		}
		return world, err
	}
	if cmd.Flags().Changed("ranks") && ranks != world.Size {
		return world, fmt.Errorf("%s has started %d ranks, so leave --ranks %d out",
			world.Source, world.Size, ranks)
	}
	return world, keepStdout(cmd)
}

// keepStdout keeps standard output for what the command prints. NCCL writes its log there, which
// would be among JSON; it goes to standard error.
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

// timing is the annotation of a command that says why its ranks may not share GPUs.
const timing = "timing"

// startRanks launches this program once for each rank, with the same flags.
func startRanks(cmd *cobra.Command, ranks int) error {
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("finding this program: %w", err))
	}
	backend := cmd.Flag("backend").Value.String()
	ranks, shared, err := roomFor(ranks, cmd.Flags().Changed("ranks"), cmp.Or(backend, "auto"))
	if err == nil && shared != nil && cmd.Annotations[timing] != "" {
		err = fmt.Errorf("%d ranks on %s: %s", ranks, shared.machine(), cmd.Annotations[timing])
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
		Ranks: ranks, Command: command, Output: launch.OutputPlain,
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

// verdict is the exit code of all ranks together: that of a signal that was passed on to them and
// that they did not survive, else the largest of theirs, where a rank that was ended counts as one
// that could not run.
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

// interrupted reports whether a signal to this process has ended ranks. How they end by it is
// theirs: a Go program ends with code 2 by SIGQUIT.
func interrupted(result *launch.Result) bool { return result.Signal != 0 && result.First >= 0 }

// complete offers the values of a flag to the shell. The flag exists, so it cannot fail.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
