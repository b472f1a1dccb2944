package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/internal/doctor"
	"symmem/internal/rendezvous"
	"symmem/internal/soak"
)

const soakLong = "" +
	`soak runs random programs for a long time and checks every element of every result.

It starts the ranks itself, or, started by a launcher, is one of them. A program is a sequence of
rounds; each is drawn from the seed and its number alone, and is the same on all ranks: allocations
and frees in several pools, scopes, collectives of all operations and types, alone and several at
once, on several streams, splits, aborts by a drawn rank, captures and replays while pools grow,
Reserve and Trim. In addition, each rank allocates memory of its own (--skew). Rounds take the check
levels in turns, unless --check names one. Every round is reported on standard error.

The first three rounds warm up. At the end memory of the device, goroutines, file descriptors and
shared mappings are to be what they were then: exactly on the host; on GPUs with 64 MiB of device
memory, 16 descriptors and 16 mappings more, since CUDA and NCCL load kernels and open files when
they first need them.

A round that fails names itself: --seed, --from-round and --rounds 1 run it again.

Exit codes: 0 all is well; 1 a result was wrong, ranks differ, or something did not come back; 2 it
could not run, or not to its end, as when a rank is lost or a round hangs.`

const soakExample = `  symmem soak --duration 20m --seed 7 --ranks 4
  symmem soak --rounds 10 --ranks 2 --backend host --json
  symmem soak --seed 7 --from-round 31 --rounds 1 --ranks 4
  symmem soak --placement address --check off --rounds 5   # shows what goes wrong`

// soakFlags are the flags of soak as they are given.
type soakFlags struct {
	config    soak.Config
	ranks     int
	bytes     bytesFlag
	backend   string
	placement string
	check     string
	json      bool
	started   bool
}

func newSoakCommand() *cobra.Command {
	f := &soakFlags{config: soak.Default()}
	cmd := &cobra.Command{
		Use:     "soak",
		Short:   "Run random programs for a long time, and look for what goes wrong",
		Long:    soakLong,
		Example: soakExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(); err != nil {
				return err
			}
			return asRanks(cmd, f.ranks, f.started, func(w rendezvous.World) error {
				return f.rank(cmd.Context(), w, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	f.register(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	complete(cmd, "placement", placementNames...)
	complete(cmd, "check", checkNames...)
	return cmd
}

func (f *soakFlags) register(flags *pflag.FlagSet) {
	c := &f.config
	f.bytes = bytesFlag(c.MaxBytes)
	flags.IntVar(&f.ranks, "ranks", 4, "processes to start, up to 64")
	flags.Uint64Var(&c.Seed, "seed", c.Seed, "where all draws come from")
	flags.DurationVar(&c.Duration, "duration", c.Duration, "how long rounds begin")
	flags.IntVar(&c.Rounds, "rounds", 0,
		"run so many rounds instead; 0: as many as --duration has time for")
	flags.IntVar(&c.From, "from-round", c.From, "number of the first round")
	flags.IntVar(&c.Steps, "steps", c.Steps, "steps of a round")
	flags.Var(&f.bytes, "max-bytes", "longest message of a rank, such as 4M")
	backendFlag(flags, &f.backend, c.Backend)
	flags.StringVar(&f.placement, "placement", "creation",
		"order among equally large free blocks: creation or address")
	flags.StringVar(&f.check, "check", "default",
		"what ranks compare: off, registration or every; by default all in turns")
	flags.BoolVar(&c.Skew, "skew", c.Skew, "give each rank allocations and addresses of its own")
	flags.DurationVar(&c.Timeout, "timeout", c.Timeout, "longest wait for another rank")
	flags.DurationVar(&c.RoundTimeout, "round-timeout", c.RoundTimeout, "longest round")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.BoolVar(&f.started, startedFlag, false, "this process is a rank of a soak")
	cobra.CheckErr(flags.MarkHidden(startedFlag))
}

// parse checks all flags before anything starts.
func (f *soakFlags) parse() (err error) {
	c := &f.config
	c.MaxBytes = int64(f.bytes)
	if c.Check, err = symmem.ParseCheckLevel(f.check); err != nil {
		return err
	}
	if c.Placement, err = symmem.ParsePlacement(f.placement); err != nil {
		return err
	}
	if err := chooseBackend(&f.backend, c.Backend); err != nil {
		return err
	}
	c.Backend = f.backend
	// Sums of int8 must hold a part of each rank.
	const most = 64
	if f.ranks < 1 || f.ranks > most {
		return fmt.Errorf("ranks is %d, but must be from 1 to %d", f.ranks, most)
	}
	return c.Validate()
}

// rank runs the soak as one rank. Only rank 0 writes the report.
func (f *soakFlags) rank(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) error {
	me := soak.Rank{Open: symmem.Open, Local: w.LocalRank, Hang: f.hang(w, stderr)}
	if w.Rank == 0 {
		me.Progress = func(line string) { fmt.Fprintln(stderr, line) }
	}
	f.config.SharedGPUs = os.Getenv(doctor.SharingVariable) == "1"
	report, err := soak.Run(ctx, f.config, me)
	if report != nil && w.Rank == 0 {
		err = errors.Join(err, writeReport(stdout, f.json, report, report.WriteText))
	}
	return f.exit(stderr, w, report, err)
}

// hang ends the process of a rank that hangs: its launcher ends the others.
func (f *soakFlags) hang(w rendezvous.World, stderr io.Writer) func(int, []byte) {
	return func(round int, stacks []byte) {
		fmt.Fprintf(stderr, "[rank %d] round %d hangs; %s\n%s\n", w.Rank, round,
			f.again(w, round), stacks)
		os.Exit(exitUsage)
	}
}

// again says how to run a round again.
func (f *soakFlags) again(w rendezvous.World, round int) string {
	return fmt.Sprintf("to run it again: symmem soak --ranks %d %s", w.Size,
		soak.Reproduce(&f.config, round))
}

// exit says on standard error what ended this rank's run, and gives the exit code.
func (f *soakFlags) exit(
	stderr io.Writer, w rendezvous.World, r *soak.Report, err error,
) error {
	if r != nil {
		for _, finding := range r.Findings {
			fmt.Fprintf(stderr, "[rank %d] wrong: %s\n", w.Rank, finding)
		}
		if r.FirstWrong > 0 && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.again(w, r.FirstWrong))
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "[rank %d] %v\n", w.Rank, err)
		var round *soak.RoundError
		if errors.As(err, &round) && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.again(w, round.Round))
		}
		if r != nil && !r.OK() {
			return exitWith(exitWrong, nil)
		}
		return exitWith(exitUsage, nil)
	}
	if !r.OK() {
		return exitWith(exitWrong, nil)
	}
	return nil
}
