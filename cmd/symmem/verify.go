package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/internal/launch"
	"symmem/internal/proof"
	"symmem/internal/rendezvous"
	"symmem/internal/verify"
)

const verifyLong = `verify all-reduces symmetric memory and checks every element on every rank.

It starts the ranks itself, or, started by a launcher (symmem launch, torchrun, mpirun, srun), is
one of them. Each round makes the cases, all live at once, fills them with values of their own,
reduces them in place, checks them and frees them, so that later rounds reuse memory.

--churn comes before the cases of each round: random allocations and frees, the same on every rank,
with sums of live blocks along the way. --skew adds what real ranks have: memory of their own, and
addresses that differ. With --placement address the same run shows what goes wrong when equally
good blocks are chosen by address: wrong sums with --check off, else the first event at which
ranks differ.

--path says how sums are made: over windows, plain, or direct, by kernels of our own over the peers'
memory. The report says which paths were taken, and why that is not the one that was asked for.
--prove is about NCCL's kernels alone: what goes direct does not show in its log.

--size is in float32 elements. SYMMEM_PROGRESS=lines writes progress to standard error.

Exit codes: 0 every case passed; 1 a sum was wrong or ranks differ; 2 it could not run, or not to
its end, as when a rank is lost; 128 + n it was ended by signal n. With code 2 there may be no
table.`

const verifyExample = `  symmem verify
  symmem verify --ranks 8 --size 1Mi --churn 1000 --skew
  symmem verify --placement address --skew --churn 200 --check off
  symmem verify --groups 6 --churn 200 --json
  symmem verify --path direct --churn 200
  torchrun --nproc-per-node 4 --no-python symmem verify`

// verifyFlags are the flags of verify as they are given.
type verifyFlags struct {
	config    verify.Config
	ranks     int
	size      size
	backend   string
	placement string
	check     string
	path      string
	json      bool
	started   bool
	prove     proof.Prover
}

// startedFlag is the hidden flag of the ranks that verify has started. Such a rank never starts
// others, even if it has lost the environment that says which rank it is.
const startedFlag = "started"

func newVerifyCommand() *cobra.Command {
	f := &verifyFlags{config: verify.Default()}
	cmd := &cobra.Command{
		Use:     "verify",
		Short:   "Prove that collectives over symmetric memory give right sums",
		Long:    verifyLong,
		Example: verifyExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return f.verify(cmd)
		},
	}
	f.register(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	complete(cmd, "placement", placementNames...)
	complete(cmd, "check", checkNames...)
	complete(cmd, "path", pathNames...)
	return cmd
}

var (
	placementNames = []string{"creation", "address"}
	checkNames     = []string{"default", "off", "registration", "every"}
	// pathNames offers the paths to shells. What is taken is what symmem.ParsePathChoice reads.
	pathNames = []string{"auto", "plain", "window", "direct"}
)

func (f *verifyFlags) register(flags *pflag.FlagSet) {
	c := &f.config
	f.size = size(c.Elements)
	flags.IntVar(&f.ranks, "ranks", 4, "processes to start, up to 64")
	flags.IntVar(&c.Cases, "cases", c.Cases, "buffers that are live at once")
	flags.IntVar(&c.Rounds, "rounds", c.Rounds, "how often the cases are made and freed")
	flags.Var(&f.size, "size", "float32 elements of a case")
	backendFlag(flags, &f.backend, c.Backend)
	flags.StringVar(&f.placement, "placement", "creation",
		"order among equally large free blocks: creation or address")
	flags.BoolVar(&c.Skew, "skew", false, "give each rank allocations and addresses of its own")
	flags.IntVar(&c.Churn, "churn", 0, "random allocations and frees before each round's cases")
	flags.Uint64Var(&c.Seed, "seed", c.Seed, "where churn and skew draw from")
	flags.StringVar(&f.check, "check", "default",
		"what ranks compare: off, registration, every, or the backend's default")
	flags.StringVar(&f.path, "path", "", "path of collectives: window, plain, direct, or auto for "+
		"what the tuning table says (default $SYMMEM_PATH, else window)")
	flags.IntVar(&c.Groups, "groups", c.Groups, "overlapping groups over one pool")
	flags.DurationVar(&c.Timeout, "timeout", c.Timeout, "longest wait for another rank")
	flags.BoolVar(&c.CallSites, "callsites", false, "note where each allocation was made")
	flags.BoolVar(&f.prove.On, "prove", false, proof.Usage)
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.BoolVar(&f.started, startedFlag, false, "this process is a rank of a verify")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
}

// complete offers the values of a flag to the shell. The flag exists, so it cannot fail.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag,
		cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// maxRanks is how many ranks one machine takes: the host backend has no more, and no machine has
// more GPUs.
const maxRanks = 64

// parse checks all flags before anything starts.
func (f *verifyFlags) parse() (err error) {
	c := &f.config
	c.Elements = int64(f.size)
	if f.ranks < 1 || f.ranks > maxRanks {
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", f.ranks, maxRanks)
	}
	if c.Check, err = symmem.ParseCheckLevel(f.check); err != nil {
		return err
	}
	if err := f.parsePath(); err != nil {
		return err
	}
	if c.Placement, err = symmem.ParsePlacement(f.placement); err != nil {
		return err
	}
	if err := chooseBackend(&f.backend, c.Backend); err != nil {
		return err
	}
	c.Backend = f.backend
	return c.Validate()
}

// pathVariable is where Options.Path comes from unless a program gives it.
const pathVariable = "SYMMEM_PATH"

// parsePath takes the flag, else the variable, else what Default says.
func (f *verifyFlags) parsePath() (err error) {
	c := &f.config
	switch value := os.Getenv(pathVariable); {
	case f.path != "":
		c.Path, err = symmem.ParsePathChoice(f.path)
	case value != "":
		if c.Path, err = symmem.ParsePathChoice(value); err != nil {
			err = fmt.Errorf("%s: %w", pathVariable, err)
		}
	}
	return err
}

// verify is one rank, or starts the ranks if no launcher has.
func (f *verifyFlags) verify(cmd *cobra.Command) error {
	world, err := discover(cmd, f.ranks, f.started)
	if err != nil {
		return err
	}
	if world.Source == rendezvous.SourceAlone {
		return f.start(cmd)
	}
	return f.rank(cmd.Context(), world.Rank, cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// start launches this program once for each rank, with the same flags.
func (f *verifyFlags) start(cmd *cobra.Command) error {
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("finding this program: %w", err))
	}
	var shared *sharing
	asked := cmd.Flags().Changed("ranks")
	if f.ranks, shared, err = roomFor(f.ranks, asked, f.config.Backend); err != nil {
		return exitWith(exitUsage, err)
	}
	command := []string{self, cmd.Name(), "--" + startedFlag}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		command = append(command, "--"+flag.Name+"="+flag.Value.String())
	})
	spec := launch.Spec{
		Ranks: f.ranks, Command: command, Env: os.Environ(), Output: launch.OutputPlain,
		Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
	}
	counter := &progressCounter{terminal: cmd.ErrOrStderr()}
	if isTerminal(cmd.ErrOrStderr()) {
		spec.Stderr, spec.Env = counter, append(spec.Env, envProgress+"=lines")
	}
	result, err := runRanks(cmd.Context(), spec, shared)
	counter.end()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("verifying: %w", err))
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

// rank runs the workload as one rank. Only rank 0 writes the report.
func (f *verifyFlags) rank(
	ctx context.Context, rank int, stdout, stderr io.Writer,
) (err error) {
	prefix := fmt.Sprintf("[rank %d] ", rank)
	fail := func(err error) error {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitUsage, nil)
	}
	if err := f.prove.Start(); err != nil {
		return fail(err)
	}
	defer f.prove.Close(&err)
	rt, err := symmem.Open(ctx, f.config.Options())
	if err != nil {
		return fail(err)
	}
	report, err := verify.Run(ctx, rt, f.config, f.progress(rank, stderr))
	if report == nil {
		return fail(errors.Join(err, rt.Close()))
	}
	if rank == 0 {
		err = errors.Join(err, writeReport(stdout, f.json, report, report.WriteText),
			f.kernels(stdout, report))
	}
	err = errors.Join(err, tolerated(report, rt.Close()))
	return f.exit(stderr, prefix, report, err)
}

// kernels prints which kernels NCCL took, if that is asked for.
func (f *verifyFlags) kernels(w io.Writer, r *verify.Report) error {
	if f.json {
		return nil
	}
	for i := range r.Cases {
		f.prove.Called("AllReduce", r.Cases[i].Size, 4)
	}
	return f.prove.Write(w, "")
}

// tolerated drops the error of a Close after a fault: it repeats the fault.
func tolerated(r *verify.Report, err error) error {
	if r.Divergence == nil && r.Fault == "" {
		return err
	}
	return nil
}

// progress is how a rank tells how far it is, or nil.
func (f *verifyFlags) progress(rank int, stderr io.Writer) func(done, all int) {
	switch {
	case rank != 0:
		return nil
	case os.Getenv(envProgress) == "lines":
		return progressLines(stderr)
	case isTerminal(stderr):
		return progressLines(&progressCounter{terminal: stderr})
	}
	return nil
}

// exit says on standard error what ended this rank's run, and gives the exit code.
func (f *verifyFlags) exit(stderr io.Writer, prefix string, r *verify.Report, err error) error {
	if r.Divergence != nil {
		fmt.Fprintf(stderr, "%sdivergence: %s\n", prefix, r.Divergence.Message)
		return exitWith(exitWrong, nil)
	}
	if r.Fault != "" {
		own := strings.Trim(prefix, "[] ") + ": "
		fmt.Fprintf(stderr, "%s%s\n", prefix, strings.TrimPrefix(r.Fault, own))
		return exitWith(exitUsage, nil)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitUsage, nil)
	}
	if !r.OK() {
		return exitWith(exitWrong, nil)
	}
	return nil
}
