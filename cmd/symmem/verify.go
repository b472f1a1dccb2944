package main

import (
	"fmt"

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

If a launcher (symmem launch, torchrun, mpirun, srun) started this process, it is one of the ranks.
If not, it starts the ranks.

A case is one buffer. Each round allocates all cases, fills them with different values, all-reduces
them in place, checks the sums, and frees the cases, so that later rounds reuse memory.

--churn adds random allocations and frees before the cases of each round, and all-reduces some live
blocks. These steps are the same on every rank. --skew adds unrelated allocations and different
addresses on each rank, as in real programs.

--placement address chooses between equally good free blocks by address. This is wrong, and the run
shows the consequences: wrong sums with --check off, and otherwise an error at the first event that
differs between ranks.

--path selects the path of the sums: window, plain, direct or two-level. The direct path uses
symmem's kernels, which read the memory of other ranks. The two-level path uses these kernels within
machines and NCCL between them. The report lists the paths taken, and why they differ from the
requested path. --prove covers only NCCL's kernels, not the direct path.

--deterministic compares the results, bit by bit, with a formula of reductions
(docs/reference/deterministic.md). Cases cycle through all types and reductions, with numbers that
cancel each other out, extreme numbers and NaNs.

--for runs random programs for the given time. They allocate and free in several pools, run
collectives of all operations and types on several streams, split and abort groups, capture and
replay graphs, and reserve and trim memory. The steps of a round depend only on the seed and the
number of the round, and are the same on all ranks. By default, --skew is on, and rounds cycle
through the check levels. Every round is reported on standard error. With --rounds, the run may end
earlier, after that number of rounds. If a round fails, verify prints the flags that repeat it:
--seed, --from-round and --rounds 1.

The first three random rounds are a warm-up. After the last round, the usage of device memory,
goroutines, file descriptors and shared mappings must not be higher than after the warm-up. On GPUs,
an increase of 64 MiB of device memory, 16 descriptors and 16 mappings is accepted, because CUDA and
NCCL load kernels and open files on demand.

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

// verifyFlags holds the flags of verify. There are two kinds of runs: cases and, with --for or
// --from-round, random programs. A case is an all-reduce of one buffer.
type verifyFlags struct {
	rankFlags
	caseConfig   verify.Config // for cases; the embedded Config is for both kinds
	randomConfig random.Config // for random programs; parseRandom sets the embedded Config
	rounds       int
	caseSize     size // of each buffer, in float32 elements
	maxBytes     size // of a message in random programs
	isSkewed     bool // make allocations and addresses differ between ranks
	json         bool
	prover       proof.Prover // for --prove: determines which NCCL kernels ran
}

func newVerifyCommand() *cobra.Command {
	f := &verifyFlags{caseConfig: verify.Default(), randomConfig: random.Default()}
	cmd := &cobra.Command{
		Use:        "verify",
		SuggestFor: []string{"soak"}, // the former command for random programs
		Short:      "Check that collectives on symmetric memory give right results",
		Long:       verifyLong,
		Example:    verifyExample,
		Args:       cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(cmd.Flags()); err != nil {
				return err
			}

			runRank := f.runCases
			if isRandomRun(cmd.Flags()) {
				runRank = f.runRandom
			}

			return f.runAsRanks(cmd, func(w rendezvous.World) error {
				return runRank(cmd.Context(), w, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	f.addFlags(cmd.Flags())
	complete(cmd, "backend", backendNames()...)
	complete(cmd, "placement", placementNames...)
	complete(cmd, "check", checkNames...)
	complete(cmd, "path", pathNames...)
	complete(cmd, "deterministic", formulaNames...)
	return cmd
}

// Values of flags for shell completion.
var (
	placementNames = []string{"creation", "address"}
	checkNames     = []string{"default", "off", "registration", "every"}
	pathNames      = []string{"auto", "plain", "window", "direct", "two-level"}
	formulaNames   = []string{"ranks", "tree", "rounded-tree"}
)

func (f *verifyFlags) addFlags(flags *pflag.FlagSet) {
	f.addCommonFlags(flags)
	f.addCaseFlags(flags)
	f.addRandomFlags(flags)
}

func (f *verifyFlags) addCommonFlags(flags *pflag.FlagSet) {
	c := &f.caseConfig
	const defaultRanks = 4
	f.addRankFlags(flags, defaultRanks, "processes to start, at most 64", &c.Timeout)
	flags.IntVar(&f.rounds, "rounds", c.Rounds,
		"number of times the cases are allocated and freed; with --for: maximum number of rounds")
	addBackendFlag(flags, &c.Backend)
	flags.Var(newNameValue(&c.Placement, symmem.ParsePlacement), "placement",
		"order of equally large free blocks: creation or address")
	flags.BoolVar(&f.isSkewed, "skew", false,
		"make allocations and addresses differ between ranks; on by default with --for")
	flags.Uint64Var(&c.Seed, "seed", c.Seed, "seed of all random choices")
	flags.Var(newNameValue(&c.Check, symmem.ParseCheckLevel), "check", "what ranks compare: off, "+
		"registration, every, or the backend's default; with --for: by default, all of them in turn")
	flags.Lookup("check").DefValue = "" // hides the default in the usage text
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
}

func (f *verifyFlags) addCaseFlags(flags *pflag.FlagSet) {
	c := &f.caseConfig
	f.caseSize = size(c.Elements)
	flags.IntVar(&c.Cases, "cases", c.Cases, "number of buffers that are live at the same time")
	flags.Var(&f.caseSize, "size", "float32 elements of a case")
	flags.IntVar(&c.Churn, "churn", 0,
		"number of random allocations and frees before the cases of each round")
	flags.Var(newNameValue(&c.Path, symmem.ParsePathChoice), "path", "path of collectives: window, "+
		"plain, direct, two-level, or auto to use the tuning table (default $SYMMEM_PATH)")
	flags.Var(newNameValue(&c.Deterministic, symmem.ParseFormula), "deterministic", "compare results "+
		"with a formula of reductions, bit by bit: ranks, tree or rounded-tree; --path is then auto by "+
		"default")
	formulaFlag := flags.Lookup("deterministic")
	formulaFlag.NoOptDefVal = "ranks" // the value of a bare --deterministic
	formulaFlag.DefValue = ""         // hides the default in the usage text
	flags.IntVar(&c.Groups, "groups", c.Groups, "number of overlapping groups that share the pool")
	flags.BoolVar(&c.CallSites, "callsites", false, "record the line of each allocation")
	flags.BoolVar(&f.prover.Enabled, "prove", false, proof.FlagUsage)
}

func (f *verifyFlags) addRandomFlags(flags *pflag.FlagSet) {
	r := &f.randomConfig
	f.maxBytes = size(r.MaxBytes)
	flags.DurationVar(&r.Duration, "for", 0, "run random programs for this long")
	flags.IntVar(&r.FirstRound, "from-round", r.FirstRound,
		"run random programs, starting with this round")
	flags.IntVar(&r.Steps, "steps", r.Steps, "with --for: number of steps in a round")
	flags.Var(&f.maxBytes, "max-bytes", "with --for: largest message of a rank, such as 4M")
	flags.DurationVar(&r.RoundTimeout, "round-timeout", r.RoundTimeout,
		"with --for: maximum duration of a round")
}

// Flags that apply to only one kind of run, which --for and --from-round select.
var (
	caseFlags = []string{
		"callsites", "cases", "churn", "deterministic", "groups", "path", "prove", "size",
	}
	randomFlags = []string{"max-bytes", "round-timeout", "steps"}
)

func isRandomRun(flags *pflag.FlagSet) bool {
	return flags.Changed("for") || flags.Changed("from-round")
}

// checkFlagCombination returns an error if a flag does not apply to the selected kind of run.
func checkFlagCombination(flags *pflag.FlagSet) error {
	if isRandomRun(flags) {
		return prohibitFlags(flags, caseFlags, "cases, which run without --for and --from-round")
	}

	return prohibitFlags(flags, randomFlags,
		"random programs, which run with --for or --from-round")
}

// prohibitFlags returns an error if one of the named flags is set. They apply only to otherKind.
func prohibitFlags(flags *pflag.FlagSet, names []string, otherKind string) error {
	for _, name := range names {
		if flags.Changed(name) {
			return fmt.Errorf("--%s applies only to %s", name, otherKind)
		}
	}

	return nil
}

// parse validates the flags and completes the configuration of the selected kind of run.
func (f *verifyFlags) parse(flags *pflag.FlagSet) error {
	if err := checkFlagCombination(flags); err != nil {
		return err
	}

	const minRanks = 1
	if err := f.checkRanks(minRanks); err != nil {
		return err
	}

	if err := chooseBackend(&f.caseConfig.Backend); err != nil {
		return err
	}

	if isRandomRun(flags) {
		return f.parseRandom(flags)
	}

	return f.parseCases(flags)
}
