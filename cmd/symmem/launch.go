package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/live"
)

const launchLong = `launch starts N ranks of a program on this machine and waits until they exit.

It sets the environment variables that torchrun sets. It prints the output of the ranks in whole
lines, with the prefix "[rank] ". An incomplete line, such as a prompt or a progress bar, is printed
after 0.1 seconds.

When a rank fails, the other ranks have 10 seconds to print their errors and exit. Then they get
SIGTERM and, 5 seconds later, SIGKILL. 2 seconds after the failure, a message on standard error
lists the ranks that are still running. Processes that a rank leaves behind are killed when the rank
exits.

launch forwards the signals INT, TERM, HUP and QUIT to the ranks, even to suspended ones. Ranks that
have not exited 10 seconds after a TERM (--kill-after) get SIGKILL. A second interrupt kills all
ranks immediately.

The exit code is that of the first rank that failed, 128+n for signal n, or 2 if nothing could be
started. If the output is a pipe whose reader has exited, the ranks get SIGTERM, and the code is
141.

--share-gpus lets ranks share GPUs if there are fewer GPUs than ranks. It sets variables for NCCL
(2.30 or newer) and CUDA, unless they are already set. While the ranks run, it also runs a daemon of
NVIDIA's Multi-Process Service, if this is installed. A rank must use GPU LOCAL_RANK modulo the
number of GPUs, as symmem does.

--json prints an object with the exit codes of all ranks to standard output. The output of the ranks
then goes to standard error. --summary writes the object to a file instead.`

const launchExample = `  symmem launch -n 4 -- python train.py --steps 10
  symmem launch -n 8 --pin -- ./bench
  symmem launch -n 2 --no-prefix -- symmem verify
  symmem launch -n 4 --summary exits.json -- ./job`

// maxLaunchedRanks is larger than maxRanks, because launch can start programs that do not use
// symmem.
const maxLaunchedRanks = 4096

type launchFlags struct {
	ranks       int
	port        int           // value of MASTER_PORT; 0 for a free port
	killAfter   time.Duration // time between a forwarded TERM and SIGKILL; 0 waits forever
	pin         bool          // bind each rank to a processor
	shareGPUs   bool
	noPrefix    bool
	json        bool
	summaryFile string // "" to write no summary
	traceFolder string // "" to leave SYMMEM_TRACE unchanged
	httpAddress string // "" to leave SYMMEM_HTTP unchanged
}

func newLaunchCommand() *cobra.Command {
	f := &launchFlags{}
	cmd := &cobra.Command{
		Use:     "launch -n N [flags] -- command [argument ...]",
		Short:   "Start the ranks of a program on this machine",
		Long:    launchLong,
		Example: launchExample,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	// Flags after the command's name belong to the command.
	flags.SetInterspersed(false)
	flags.IntVarP(&f.ranks, "ranks", "n", 0, "processes to start, at most 4096 (64 with symmem's\n"+
		"host backend)")
	flags.IntVar(&f.port, "master-port", 0, "value of MASTER_PORT (default: a free port)")
	flags.DurationVar(&f.killAfter, "kill-after", 10*time.Second,
		"time between a forwarded TERM and SIGKILL; 0 waits forever")
	flags.BoolVar(&f.pin, "pin", false, "bind rank r to the r-th of the allowed processors")
	flags.BoolVar(&f.shareGPUs, "share-gpus", false,
		"let ranks share GPUs if there are fewer GPUs than ranks")
	flags.BoolVar(&f.noPrefix, "no-prefix", false, "print lines without the prefix")
	flags.BoolVar(&f.json, "json", false, "print one JSON object with each rank's exit code")
	flags.StringVar(&f.traceFolder, "trace", "", "folder for traces, which symmem diff compares")
	flags.StringVar(&f.httpAddress, "http", "",
		"address of a page that shows what all ranks do, such as\n"+
			"localhost:9400, or \"unix\" to serve only symmem status")
	flags.StringVar(&f.summaryFile, "summary", "", "write the object of --json to a file")
	return cmd
}

// parse checks the values of flags, and that the program in args exists.
func (f *launchFlags) parse(flags *pflag.FlagSet, args []string) error {
	switch {
	case f.ranks < 1 || f.ranks > maxLaunchedRanks:
		return fmt.Errorf("the number of ranks is %d, but must be from 1 to %d: set it with -n",
			f.ranks, maxLaunchedRanks)
	case len(args) == 0:
		return fmt.Errorf("add the command to start: symmem launch -n %d -- command", f.ranks)
	case f.port < 0 || f.port > 65535:
		return fmt.Errorf("--master-port %d is not a port", f.port)
	case f.killAfter < 0:
		return fmt.Errorf("--kill-after is %v, but must not be negative", f.killAfter)
	}

	if f.httpAddress != "" {
		if err := live.CheckAddress(f.httpAddress); err != nil {
			return fmt.Errorf("--http: %w", err)
		}
	}

	if _, err := exec.LookPath(args[0]); err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("finding the command: %w", err))
	}

	// An empty value is not the same as an absent flag. It is often an unset variable of a script.
	switch {
	case f.summaryFile == "" && flags.Changed("summary"):
		return errors.New("--summary needs the name of a file")
	case f.traceFolder == "" && flags.Changed("trace"):
		return errors.New("--trace needs the name of a folder")
	case f.httpAddress == "" && flags.Changed("http"):
		return errors.New("--http needs an address")
	}

	return nil
}

func (f *launchFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.parse(cmd.Flags(), args); err != nil {
		return err
	}

	spec := launch.Spec{
		Ranks: f.ranks, Command: args, MasterPort: f.port, Stdin: cmd.InOrStdin(),
		Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(), KillDelay: f.killAfter,
		OmitPrefix: f.noPrefix,
	}
	if f.killAfter == 0 {
		spec.KillDelay = -1 // wait forever
	}

	if f.json {
		spec.Stdout = spec.Stderr // standard output is for the object
	}

	if err := f.setVariables(); err != nil {
		return err
	}

	if f.pin {
		self, err := os.Executable()
		if err != nil {
			return exitWith(exitIncomplete, fmt.Errorf("finding this program: %w", err))
		}

		// This command binds the process, and then executes the user's command.
		spec.Command = slices.Concat([]string{self, pinName, "--"}, args)
	}

	plan, err := f.planSharing()
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	result, err := runRanks(cmd.Context(), spec, plan)
	live.Sweep() // removes folders that killed ranks left behind
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	if err := f.writeSummary(cmd, &result); err != nil {
		return exitWith(exitIncomplete, err)
	}

	if result.Signal == syscall.SIGPIPE {
		return exitWith(128+int(syscall.SIGPIPE), nil)
	}

	return launchError(&result)
}

// planSharing returns how the ranks share GPUs. It returns nil if there are enough GPUs, or without
// --share-gpus.
func (f *launchFlags) planSharing() (*sharingPlan, error) {
	if !f.shareGPUs {
		return nil, nil
	}

	userEnv := os.Environ() // before LocalRanks loads libraries, which may set variables
	gpuCount, err := symmem.LocalRanks("nccl")
	if err == nil && gpuCount >= f.ranks {
		return nil, nil
	}

	return newSharingPlan(f.ranks, nil, userEnv) // if there is no GPU, the error says why
}

// setVariables sets environment variables, which the ranks inherit, to the values of flags.
func (f *launchFlags) setVariables() error {
	variables := map[string]string{"SYMMEM_HTTP": f.httpAddress}
	if f.traceFolder != "" {
		folder, err := filepath.Abs(f.traceFolder)
		if err != nil {
			return exitWith(exitIncomplete, fmt.Errorf("finding the folder of traces: %w", err))
		}

		variables["SYMMEM_TRACE"] = folder
	}

	for name, value := range variables {
		if value == "" {
			continue
		}

		if err := os.Setenv(name, value); err != nil {
			return exitWith(exitIncomplete, fmt.Errorf("setting %s: %w", name, err))
		}
	}

	return nil
}

// launchError returns an error that says how the first failed rank exited, or nil if none failed.
func launchError(result *launch.Result) error {
	if result.FirstFailed < 0 {
		return nil
	}

	firstExit := result.Exits[result.FirstFailed]
	return exitWith(result.Code, fmt.Errorf("%v", firstExit))
}

// writeSummary writes the object of --json and --summary, if these flags are set.
func (f *launchFlags) writeSummary(cmd *cobra.Command, result *launch.Result) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encoding the summary: %w", err)
	}

	encoded = append(encoded, '\n')
	if f.summaryFile != "" {
		if err := os.WriteFile(f.summaryFile, encoded, 0o644); err != nil {
			return fmt.Errorf("writing the summary: %w", err)
		}
	}

	if f.json {
		if _, err := cmd.OutOrStdout().Write(encoded); err != nil {
			return err
		}
	}

	return nil
}
