package random

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Suppose that three ranks test random programs with seed 7, and the limit is 5 rounds. Each rank
// calls Run. Each round from 1 to 5 runs a program that depends only on the seed and its number:
//
//   - Rounds use environments in turn: a Runtime for each check level (how often ranks compare).
//   - A rank counts its work and its wrong elements in a tally. After a round, the ranks gather
//     their tallies: each sends its tally to all others, and adds up the wrong elements and bytes.
//   - The run ends early after a wrong element, or if a round fails (returns an error) on any rank.
//   - A round hangs if it runs long after its deadline, or after the group of all ranks failed.
//   - Rounds 1 to 3 are the warm-up. The process's usage of resources, such as open files, is
//     compared after round 3 and after the last one. If it has grown too much, a resource leaks.

// Rank describes this rank and its process.
type Rank struct {
	Open      Open // opens a Runtime; called for each check level
	LocalRank int  // number of the rank on its machine
	// SharedProcess is set if the process also runs other ranks. Run then ignores leaks.
	SharedProcess bool
	OnRound       func(line string) // called after each round with the progress; may be nil
	// OnHang, if set, is called if a round hangs. stacks are those of all goroutines.
	OnHang func(round int, stacks []byte)
}

// RoundError reports a round that failed.
type RoundError struct {
	Round int    // number of the round
	Seed  uint64 // Config.Seed
	Cause error
}

func (e *RoundError) Error() string {
	return fmt.Sprintf("round %d of seed %d: %v", e.Round, e.Seed, e.Cause)
}

func (e *RoundError) Unwrap() error { return e.Cause }

// runner holds the state of a Run.
type runner struct {
	config          Config
	rank            Rank
	environments    []*environment // one for each check level
	report          *Report        // the results of all ranks
	tally           Tally          // of this rank, for all rounds up to now
	started         time.Time
	completedRounds int
	warmUsage       usage // measured at the end of the warm-up
}

// Run runs random programs as one rank, and returns the results of all ranks. All ranks must call
// it. If a round fails, Run returns a *RoundError, and a Report with the results so far.
func Run(ctx context.Context, c Config, rank Rank) (report *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}

	r := &runner{config: c, rank: rank, started: time.Now()}
	defer func() {
		for _, env := range r.environments {
			closeErr := env.close()
			if err == nil { // otherwise, closeErr may be the same error again
				err = closeErr
			}
		}
	}()
	for _, level := range c.checkLevels() {
		env, err := newEnvironment(ctx, rank.Open, &c, level)
		if err != nil {
			return nil, fmt.Errorf("opening the Runtime with check level %v: %w", level, err)
		}

		r.environments = append(r.environments, env)
	}

	r.report = newReport(r.environments[0].rt, &c)
	return r.report, r.runRounds(ctx)
}

// backend returns the name of the backend, such as "nccl". It is the same in all environments.
func (r *runner) backend() string { return r.environments[0].rt.Device().Backend }

// runRounds runs rounds until the run ends, and then looks for leaks.
func (r *runner) runRounds(ctx context.Context) error {
	for {
		number := r.config.FirstRound + r.completedRounds
		hasNext, err := r.runRound(ctx, number)
		if err != nil {
			return &RoundError{Round: number, Seed: r.config.Seed, Cause: err}
		}

		if !hasNext {
			return r.compareUsage(ctx)
		}
	}
}

// warmUpRounds is the number of rounds of the warm-up, one for each of three check levels. In the
// first round of a level, libraries acquire resources that they keep.
const warmUpRounds = 3

// runRound runs a round, and reports whether another round follows.
func (r *runner) runRound(ctx context.Context, number int) (hasNext bool, err error) {
	// A round's environment depends only on its number, so a repeated round uses the same one.
	env := r.environments[number%len(r.environments)]
	current := newRound(env, &r.config, number, &r.tally)
	if err := r.runUntilDeadline(ctx, current); err != nil {
		return false, r.gatherFailure(ctx, current, err)
	}

	r.completedRounds++
	hasNext, err = r.gatherTallies(ctx, current)
	if err != nil {
		return false, err
	}

	usageNow, err := r.measure()
	if err != nil {
		return false, err
	}

	if r.completedRounds == warmUpRounds {
		r.warmUsage = usageNow
	}

	if r.rank.OnRound != nil {
		r.rank.OnRound(r.progressText(current, usageNow))
	}

	return hasNext, nil
}

// runUntilDeadline runs the steps of a round, which fails at its deadline.
func (r *runner) runUntilDeadline(ctx context.Context, current *round) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.RoundTimeout)
	defer cancel()
	stopWatching := r.watchForHang(current.env, current.number)
	defer stopWatching()
	err := current.run(ctx)
	if err != nil {
		workload.Abort(current.groups.all...) // Other ranks must not wait for this rank.
	}

	return err
}

const (
	hangAfterDeadline = 30 * time.Second // a round hangs if it runs longer after its deadline
	hangAfterFailure  = 15 * time.Second // or after the failure of the group of all ranks
)

// watchForHang calls OnHang in the background if the round hangs. The caller must call stop when
// the round ends.
func (r *runner) watchForHang(env *environment, number int) (stop func()) {
	if r.rank.OnHang == nil {
		return func() {}
	}

	roundEnded := make(chan struct{})
	go func() {
		select {
		case <-roundEnded:
			return
		case <-time.After(r.config.RoundTimeout + hangAfterDeadline):
		case <-env.rt.World().Ended(): // the group of all ranks has failed
			// Other ranks give up after Config.Timeout, and end the run. Call OnHang earlier.
			limit := min(hangAfterFailure, r.config.Timeout/2)
			select {
			case <-roundEnded:
				return
			case <-time.After(limit):
			}
		}

		const allGoroutines = true
		stacks := make([]byte, 1<<20) // longer stacks are cut off
		n := runtime.Stack(stacks, allGoroutines)
		r.rank.OnHang(number, stacks[:n])
	}()
	return func() { close(roundEnded) }
}

// gatherTallies adds the tallies of all ranks to the report. It reports whether another round
// follows: no limit has been reached, and no element is wrong. If the round failed on another rank,
// gatherTallies returns an error.
func (r *runner) gatherTallies(ctx context.Context, current *round) (hasNext bool, err error) {
	hasMoreRounds := r.config.hasMoreRounds(r.completedRounds, time.Since(r.started))
	own := roundResult{HasMoreRounds: hasMoreRounds, Tally: r.tally}
	all, err := workload.Gather(ctx, current.env.gatherer, own)
	if err != nil {
		return false, err
	}

	r.report.ElapsedMS = r.elapsedMS()
	failedRank := slices.IndexFunc(all, func(result roundResult) bool { return result.HasFailed })
	if failedRank >= 0 {
		r.report.addFailure(current.number, all, r.tally.findings)
		return false, fmt.Errorf("the round failed on rank %d", failedRank)
	}

	r.report.Tally = mergeTallies(all)
	r.report.Rounds = r.completedRounds
	if r.report.Wrong > 0 {
		r.report.FirstWrongRound = current.number
		r.report.Findings = append(r.report.Findings, r.tally.findings...)
		return false, nil
	}

	// Clocks differ, so ranks can disagree about a limit of time. Rank 0 decides for all.
	return all[0].HasMoreRounds, nil
}

// elapsedMS returns the time since the start of the run in milliseconds, rounded to microseconds.
func (r *runner) elapsedMS() float64 { return float64(time.Since(r.started).Microseconds()) / 1000 }

// gatherFailure adds the results of all ranks to the report after the round failed on this rank. It
// returns cause (the error of this rank), joined with any error of the exchange.
func (r *runner) gatherFailure(ctx context.Context, current *round, cause error) error {
	var divergence *symmem.DivergenceError
	isInconsistent := errors.As(cause, &divergence) || errors.Is(cause, ErrInUse)
	// Other ranks may be in gatherTallies, because the round did not fail there.
	own := roundResult{HasFailed: true, IsInconsistent: isInconsistent, Tally: r.tally}
	all, err := workload.Gather(ctx, current.env.gatherer, own)
	if err != nil {
		all = []roundResult{own}
	}

	r.report.ElapsedMS = r.elapsedMS()
	r.report.addFailure(current.number, all, r.tally.findings)
	return errors.Join(cause, err)
}

// progressText describes the state of the run after a round.
func (r *runner) progressText(current *round, usageNow usage) string {
	return fmt.Sprintf("round %d: seed %d, check %v, %d steps, %d calls, %d replays, "+
		"%d wrong, %s checked, peak memory %s, %s in pools, %s of the device, %.0f s",
		current.number, r.config.Seed, current.env.rt.Check(), r.report.Steps, r.report.Calls,
		r.report.Replays, r.report.Wrong, bytesText(r.report.Bytes), bytesText(r.report.PeakBytes),
		bytesText(usageNow[poolBytes]), bytesText(usageNow[deviceBytes]), r.report.ElapsedMS/1000)
}

// compareUsage adds the growth of each rank's usage since the warm-up to the report. It adds
// nothing with Rank.SharedProcess, if no round followed the warm-up, or if an element is wrong.
func (r *runner) compareUsage(ctx context.Context) error {
	hasWarmUpOnly := r.completedRounds <= warmUpRounds
	if r.rank.SharedProcess || hasWarmUpOnly || r.report.Wrong > 0 {
		return nil
	}

	end, err := r.measureUntilReleased(ctx)
	if err != nil {
		return err
	}

	type growth struct{ Start, End usage }
	own := growth{Start: r.warmUsage, End: end}
	all, err := workload.Gather(ctx, r.environments[0].gatherer, own) // any environment would do
	if err != nil {
		return err
	}

	for rank, g := range all {
		r.report.Resources = append(r.report.Resources, r.compareResources(rank, g.Start, g.End)...)
	}

	return nil
}

// FlagsToRepeat returns the flags that repeat a round on the same number of ranks.
func FlagsToRepeat(c *Config, round int) string {
	text := fmt.Sprintf("--seed %d --from-round %d --rounds 1 --steps %d --max-bytes %d",
		c.Seed, round, c.Steps, c.MaxBytes)
	if c.Placement == symmem.PlaceByAddress {
		text += " --placement address"
	}

	if c.Check != symmem.CheckDefault {
		text += " --check " + c.Check.String()
	}

	if !c.Skew {
		text += " --skew=false"
	}

	return text
}
