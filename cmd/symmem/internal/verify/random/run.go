package random

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// Rank describes this rank and its process.
type Rank struct {
	Open      Open // called once for each check level
	LocalRank int  // number of the rank on its machine
	// SharedProcess is set if the process also runs other ranks, which prevents the comparison of
	// resource usage.
	SharedProcess bool
	// OnRound, if set, is called after each round with a line about the progress.
	OnRound func(line string)
	// OnHang, if set, is called if a round is still running long after its deadline.
	OnHang func(round int, stacks []byte)
}

// runner runs the rounds of a Run.
type runner struct {
	config          Config
	rank            Rank
	environments    []*environment // one for each check level, used in turn
	report          *Report        // of all ranks
	tally           Tally          // of this rank
	started         time.Time
	completedRounds int
	warmUsage       usage // resource usage after the warm-up, if hasWarmUsage is set
	hasWarmUsage    bool  // false with Rank.SharedProcess
}

// warmUpRounds is the number of rounds in which libraries may still be initializing: one for each
// of the three check levels. Resources that the process acquires later are leaks.
const warmUpRounds = 3

// RoundError reports a round that failed.
type RoundError struct {
	Round int    // number of the round
	Seed  uint64 // Config.Seed
	Cause error
}

// Error returns the number of the round, the seed and the cause as text.
func (e *RoundError) Error() string {
	return fmt.Sprintf("round %d of seed %d: %v", e.Round, e.Seed, e.Cause)
}

// Unwrap returns the cause.
func (e *RoundError) Unwrap() error { return e.Cause }

// Run runs random programs as one rank, until a limit of the Config is reached or a result is
// wrong. All ranks of the world (the group of all ranks) must call it. If a round fails, Run
// returns a *RoundError and a Report with the results so far.
func Run(ctx context.Context, c Config, rank Rank) (report *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}

	r := &runner{config: c, rank: rank, started: time.Now()}
	defer func() {
		for _, env := range r.environments {
			closeErr := env.close()
			// If the run has failed, closeErr may be the same error again.
			if err == nil {
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

// elapsedMS returns the time since the start of the run in milliseconds, rounded to microseconds.
func (r *runner) elapsedMS() float64 { return float64(time.Since(r.started).Microseconds()) / 1000 }

// runRounds runs rounds until a limit is reached, a round fails or a result is wrong. It uses the
// environments in turn.
func (r *runner) runRounds(ctx context.Context) error {
	hasNext := true
	for hasNext {
		number := r.config.FirstRound + r.completedRounds
		// The remainder depends only on the number, so a repeated round has the same check level.
		env := r.environments[number%len(r.environments)]
		err := r.runRound(ctx, env, number)
		if err != nil {
			err = r.gatherFailure(ctx, env, number, err)
			return &RoundError{Round: number, Seed: r.config.Seed, Cause: err}
		}

		hasNext, err = r.finishRound(ctx, env, number)
		if err != nil {
			return &RoundError{Round: number, Seed: r.config.Seed, Cause: err}
		}
	}

	return r.compareUsage(ctx)
}

// gatherFailure adds the results of all ranks to the report after a failed round. It returns cause,
// which is this rank's error, joined with an error of the exchange. The exchange is necessary
// because ranks outside the failed group do not know why the group failed.
func (r *runner) gatherFailure(
	ctx context.Context, env *environment, number int, cause error,
) error {
	var divergence *symmem.DivergenceError
	r.report.IsInconsistent = errors.As(cause, &divergence) || errors.Is(cause, ErrInUse)
	r.report.Findings = append(r.report.Findings, r.tally.findings...)
	r.report.Wrong = r.tally.Wrong
	r.report.FailedRound = number
	r.report.ElapsedMS = r.elapsedMS()
	all, err := workload.Gather(ctx, env.gatherer, r.report)
	if err != nil {
		return errors.Join(cause, err)
	}

	r.report.Wrong = 0
	for _, other := range all { // including this rank
		r.report.Wrong += other.Wrong
		if other.IsInconsistent {
			r.report.IsInconsistent = true
		}
	}

	if r.report.Wrong > 0 {
		r.report.FirstWrongRound = number
	}

	return cause
}

// A round hangs if it runs for too long after its deadline or after a fault.
const (
	// hangAfterDeadline is the permitted time after the deadline of the round.
	hangAfterDeadline = 30 * time.Second
	// hangAfterFault is the permitted time after a fault of the world, at most half of
	// Config.Timeout. The stacks are thus printed before other ranks give up and end the run.
	hangAfterFault = 15 * time.Second
)

// watchForHang starts to watch a round in the background. If the round hangs, it calls OnHang. The
// caller must call stop when the round ends.
func (r *runner) watchForHang(env *environment, number int) (stop func()) {
	if r.rank.OnHang == nil {
		return func() {}
	}

	stopped := make(chan struct{})
	go func() {
		hang := time.After(r.config.RoundTimeout + hangAfterDeadline)
		worldFailed := env.rt.World().Ended()
		for {
			select {
			case <-stopped:
				return
			case <-worldFailed:
				worldFailed = nil // it is closed: do not select it again
				hang = time.After(min(hangAfterFault, r.config.Timeout/2))
			case <-hang:
				const maxStacksBytes = 1 << 20
				stacks := make([]byte, maxStacksBytes)
				const allGoroutines = true
				n := runtime.Stack(stacks, allGoroutines)
				r.rank.OnHang(number, stacks[:n])
				return
			}
		}
	}()
	return func() { close(stopped) }
}

// runRound runs a round, which must end before its deadline.
func (r *runner) runRound(ctx context.Context, env *environment, number int) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.RoundTimeout)
	defer cancel()
	stopWatching := r.watchForHang(env, number)
	defer stopWatching()
	current := newRound(env, &r.config, number, &r.tally)
	err := current.run(ctx)
	if err != nil {
		workload.Abort(current.groups.all...) // Other ranks must not wait for this rank.
	}

	return err
}

// finishRound adds the results of all ranks to the report. It returns whether another round
// follows: if rank 0 has reached no limit, and no result is wrong.
func (r *runner) finishRound(
	ctx context.Context, env *environment, number int,
) (hasNext bool, err error) {
	r.completedRounds++
	own := roundResult{
		HasMoreRounds: r.config.hasMoreRounds(r.completedRounds, time.Since(r.started)),
		Tally:         r.tally,
	}
	all, err := workload.Gather(ctx, env.gatherer, own)
	if err != nil {
		return false, err
	}

	hasNext = all[0].HasMoreRounds // the clocks of ranks differ
	r.report.Tally = mergeTallies(all)
	r.report.Rounds = r.completedRounds
	r.report.ElapsedMS = r.elapsedMS()
	if r.report.Wrong > 0 {
		r.report.FirstWrongRound = number
		r.report.Findings = append(r.report.Findings, r.tally.findings...)
		hasNext = false
	}

	now, err := r.measure()
	if err != nil {
		return hasNext, err
	}

	isWarmUp := r.completedRounds <= warmUpRounds
	if hasNext && isWarmUp && !r.rank.SharedProcess {
		r.warmUsage = now
		r.hasWarmUsage = true
	}

	if r.rank.OnRound != nil {
		r.rank.OnRound(r.progressText(env, number, now))
	}

	return hasNext, nil
}

// progressText describes the run after a round with the given number, in which the resource usage
// was now.
func (r *runner) progressText(env *environment, number int, now usage) string {
	report := r.report
	return fmt.Sprintf("round %d: seed %d, check %v, %d steps, %d calls, %d replays, "+
		"%d wrong, %s checked, peak memory %s, %s in pools, %s of the device, %.0f s", number,
		report.Seed, env.rt.Check(), report.Steps, report.Calls, report.Replays, report.Wrong,
		bytesText(report.Bytes), bytesText(report.PeakBytes), bytesText(now[poolBytes]),
		bytesText(now[deviceBytes]), report.ElapsedMS/1000)
}

// compareUsage sets Report.Resources to the changes of each rank's resource usage since the
// warm-up, if rounds followed the warm-up and no result was wrong.
func (r *runner) compareUsage(ctx context.Context) error {
	if !r.hasWarmUsage || r.completedRounds <= warmUpRounds || r.report.Wrong > 0 {
		return nil
	}

	end, err := r.measureUntilReleased(ctx)
	if err != nil {
		return err
	}

	type change struct{ Start, End usage }
	own := change{Start: r.warmUsage, End: end}
	all, err := workload.Gather(ctx, r.environments[0].gatherer, own)
	if err != nil {
		return err
	}

	for rank, c := range all {
		resources := r.compareResources(rank, c.Start, c.End)
		r.report.Resources = append(r.report.Resources, resources...)
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
