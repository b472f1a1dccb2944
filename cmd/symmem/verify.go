package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem"
	"symmem/cmd/symmem/internal/proof"
	"symmem/cmd/symmem/internal/verify"
	"symmem/cmd/symmem/internal/verify/random"
	"symmem/internal/rendezvous"
)

const verifyLong = "" +
	`verify runs collectives on symmetric memory and checks every element on every rank.

It starts the ranks itself or, if a launcher (symmem launch, torchrun, mpirun, srun) started it, is
one of them. Each round allocates the cases, all live at once, fills each with different values,
all-reduces them in place, checks them and frees them, so that later rounds reuse memory.

Before the cases of each round, --churn adds random allocations and frees that are the same on every
rank, and sums of some live blocks. --skew simulates real ranks, with unrelated allocations and
different addresses on each rank. With --placement address, the same run shows the consequences of
choosing equally good blocks by address: wrong sums with --check off, and otherwise the first event
at which ranks differ.

--path selects the path of the sums: window, plain, direct, which uses symmem's kernels over the
peers' memory, or two-level, which does so within machines and uses NCCL between them. The report
lists the paths taken and, if they are not the requested one, the reason.

--prove covers only NCCL's kernels, because the direct path does not appear in NCCL's log.

--deterministic opens the ranks with a formula of reductions (docs/reference/deterministic.md) and
compares the results with it bit by bit: cases rotate through all types and reductions, on numbers
that cancel each other, extreme numbers and NaNs.

--for runs random programs instead, for the given time: allocations and frees in several pools,
scopes, collectives of all operations and types, sequential and concurrent, on several streams,
splits, aborts by a random rank, captures and replays while pools grow, Reserve and Trim. Each round
is determined by the seed and its number, and is the same on all ranks. Unless flags say otherwise,
--skew is on, and rounds rotate through the check levels. Every round is reported on standard error.
With --rounds, the run may end earlier, after that number of rounds. A failed round prints the flags
that repeat it: --seed, --from-round and --rounds 1.

The first three random rounds are a warm-up. At the end, device memory, goroutines, file descriptors
and shared mappings must be back at their level after the warm-up: exactly on the host; on GPUs, up
to 64 MiB of device memory, 16 descriptors and 16 mappings more are accepted, because CUDA and NCCL
load kernels and open files on demand.

--size is in float32 elements. SYMMEM_PROGRESS=lines writes progress to standard error.

Exit codes: 0 every case passed; 1 a sum was wrong, ranks differ, or a resource was not released; 2
verify could not run or could not finish, for example because a rank was lost or a round hung; 128+n
killed by signal n. With code 2, there may be no table.`

const verifyExample = `  symmem verify
  symmem verify --ranks 8 --size 1Mi --churn 1000 --skew
  symmem verify --placement address --skew --churn 200 --check off
  symmem verify --groups 6 --churn 200 --json
  symmem verify --path direct --churn 200
  symmem verify --deterministic --cases 40
  symmem verify --for 20m --seed 7 --ranks 4
  symmem verify --from-round 31 --rounds 1 --seed 7 --ranks 4   # one random round again
  torchrun --nproc-per-node 4 --no-python symmem verify`

type verifyFlags struct {
	rankFlags
	cases  verify.Config
	random random.Config
	rounds int
	size   size
	bytes  size
	skew   bool
	json   bool
	prove  proof.Prover
}

func newVerifyCommand() *cobra.Command {
	f := &verifyFlags{cases: verify.Default(), random: random.Default()}
	cmd := &cobra.Command{
		Use: "verify",
		// Random programs used to be run by a command named soak.
		SuggestFor: []string{"soak"},
		Short:      "Prove that collectives over symmetric memory give right results",
		Long:       verifyLong,
		Example:    verifyExample,
		Args:       cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd.Flags()); err != nil {
				return err
			}
			run := f.runCases
			if isRandom(cmd.Flags()) {
				run = f.runRandom
			}
			return f.asRanks(cmd, func(w rendezvous.World) error {
				return run(cmd.Context(), w, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	f.register(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	complete(cmd, "placement", placementNames...)
	complete(cmd, "check", checkNames...)
	complete(cmd, "path", pathNames...)
	complete(cmd, "deterministic", formulaNames...)
	return cmd
}

var (
	placementNames = []string{"creation", "address"}
	checkNames     = []string{"default", "off", "registration", "every"}
	// pathNames lists the paths for shell completion. symmem.ParsePathChoice parses the flag.
	pathNames    = []string{"auto", "plain", "window", "direct"}
	formulaNames = []string{"ranks", "tree", "rounded-tree"}
)

func (f *verifyFlags) register(flags *pflag.FlagSet) {
	c, r := &f.cases, &f.random
	f.registerRanks(flags, 4, "processes to start, at most 64", &c.Timeout)
	flags.IntVar(&f.rounds, "rounds", c.Rounds,
		"how many times the cases are allocated and freed; with --for: maximum number of rounds")
	backendFlag(flags, &c.Backend)
	flags.Var(newName(&c.Placement, symmem.ParsePlacement), "placement",
		"order among equally large free blocks: creation or address")
	flags.BoolVar(&f.skew, "skew", false,
		"give each rank different allocations and addresses; on with --for")
	flags.Uint64Var(&c.Seed, "seed", c.Seed, "seed of all random choices")
	flags.Var(newName(&c.Check, symmem.ParseCheckLevel), "check", "what ranks compare: off, "+
		"registration, every, or the backend's default; with --for: by default, all of them in turn")
	flags.Lookup("check").DefValue = "" // the usage text states the default
	flags.BoolVar(&f.json, "json", false, "print one JSON object")

	f.size = size(c.Elements)
	flags.IntVar(&c.Cases, "cases", c.Cases, "buffers that are live at once")
	flags.Var(&f.size, "size", "float32 elements of a case")
	flags.IntVar(&c.Churn, "churn", 0, "random allocations and frees before each round's cases")
	flags.Var(newName(&c.Path, symmem.ParsePathChoice), "path", "path of collectives: window, plain, "+
		"direct, two-level, or auto to use the tuning table (default $SYMMEM_PATH)")
	flags.Var(newName(&c.Deterministic, symmem.ParseFormula), "deterministic", "compare results "+
		"with a formula of reductions, bit by bit: ranks, tree or rounded-tree; --path is then auto by "+
		"default")
	formula := flags.Lookup("deterministic")
	formula.NoOptDefVal, formula.DefValue = "ranks", ""
	flags.IntVar(&c.Groups, "groups", c.Groups, "overlapping groups over one pool")
	flags.BoolVar(&c.CallSites, "callsites", false, "record where each allocation was made")
	flags.BoolVar(&f.prove.Enabled, "prove", false, proof.FlagUsage)

	f.bytes = size(r.MaxBytes)
	flags.DurationVar(&r.Duration, "for", 0, "run random programs for this long")
	flags.IntVar(&r.FirstRound, "from-round", r.FirstRound, "run random programs, starting with this round")
	flags.IntVar(&r.Steps, "steps", r.Steps, "with --for: steps of a round")
	flags.Var(&f.bytes, "max-bytes", "with --for: largest message of a rank, such as 4M")
	flags.DurationVar(&r.RoundTimeout, "round-timeout", r.RoundTimeout,
		"with --for: maximum duration of a round")
}

// caseFlags lists the flags that apply only to cases. randomFlags lists the flags that apply only
// to random programs.
var (
	caseFlags = []string{
		"callsites", "cases", "churn", "deterministic", "groups", "path", "prove", "size",
	}
	randomFlags = []string{"max-bytes", "round-timeout", "steps"}
)

// isRandom reports whether the flags select random programs.
func isRandom(flags *pflag.FlagSet) bool {
	return flags.Changed("for") || flags.Changed("from-round")
}

func checkFlagKinds(flags *pflag.FlagSet) error {
	names, scope := randomFlags, "random programs, which run with --for or --from-round"
	if isRandom(flags) {
		names, scope = caseFlags, "cases, which run without --for and --from-round"
	}
	if i := slices.IndexFunc(names, flags.Changed); i >= 0 {
		return fmt.Errorf("--%s applies only to %s", names[i], scope)
	}
	return nil
}

func (f *verifyFlags) parse(flags *pflag.FlagSet) (err error) {
	if err := checkFlagKinds(flags); err != nil {
		return err
	}
	if err := f.checkRanks(1); err != nil {
		return err
	}
	if err := chooseBackend(&f.cases.Backend); err != nil {
		return err
	}
	if !isRandom(flags) {
		return f.parseCases(flags)
	}
	return f.parseRandom(flags)
}
