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

type runner struct {
	config          Config
	rank            Rank
	environments    []*environment // one for each check level
	report          *Report
	tally           Tally // of this rank
	started         time.Time
	completedRounds int
	warmUsage       usage // resource usage after the warm-up, if hasWarmUsage is set
	hasWarmUsage    bool
}

// warmUpRounds is the number of rounds, one for each check level, in which libraries may still be
// initializing. The resource usage is compared with that after these rounds.
const warmUpRounds = 3

// RoundError reports a round that failed.
type RoundError struct {
	Round int
	Seed  uint64
	Cause error
}

// Error returns the number of the round, the seed and the cause as text.
func (e *RoundError) Error() string {
	return fmt.Sprintf("round %d of seed %d: %v", e.Round, e.Seed, e.Cause)
}

// Unwrap returns the cause.
func (e *RoundError) Unwrap() error { return e.Cause }

// Run runs random programs as one rank until a result is wrong. All ranks of the world must call
// it. If a round fails, Run returns a *RoundError and a Report with the results so far.
func Run(ctx context.Context, c Config, rank Rank) (report *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &runner{config: c, rank: rank, started: time.Now()}
	defer func() {
		for _, env := range r.environments {
			if closeErr := env.close(); err == nil {
				// If the run has failed, Close returns the same error again.
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

func (r *runner) backend() string { return r.environments[0].rt.Device().Backend }

func (r *runner) elapsedMS() float64 { return float64(time.Since(r.started).Microseconds()) / 1000 }

// runRounds runs rounds until a limit is reached, a round fails or a result is wrong. It uses the
// environments in turn.
func (r *runner) runRounds(ctx context.Context) error {
	for hasNext := true; hasNext; {
		number := r.config.FirstRound + r.completedRounds
		env := r.environments[number%len(r.environments)]
		err := r.runRound(ctx, env, number)
		if err != nil {
			return &RoundError{number, r.config.Seed, r.gatherFailure(ctx, env, number, err)}
		}
		hasNext, err = r.finishRound(ctx, env, number)
		if err != nil {
			return &RoundError{number, r.config.Seed, err}
		}
	}
	return r.compareUsage(ctx)
}

// gatherFailure adds the results of all ranks to the report after a failed round, because ranks
// outside the failed group do not know why it failed. cause is this rank's error. gatherFailure
// returns it, joined with an error of the exchange.
func (r *runner) gatherFailure(
	ctx context.Context, env *environment, number int, cause error,
) error {
	r.report.IsInconsistent = errors.As(cause, new(*symmem.DivergenceError)) ||
		errors.Is(cause, ErrInUse)
	r.report.Findings = append(r.report.Findings, r.tally.findings...)
	r.report.Wrong = r.tally.Wrong
	r.report.FailedRound = number
	r.report.ElapsedMS = r.elapsedMS()
	all, err := workload.Gather(ctx, env.gatherer, r.report)
	if err != nil {
		return errors.Join(cause, err)
	}
	r.report.Wrong = 0
	for _, other := range all {
		r.report.IsInconsistent = r.report.IsInconsistent || other.IsInconsistent
		r.report.Wrong += other.Wrong
	}
	if r.report.Wrong > 0 {
		r.report.FirstWrongRound = number
	}
	return cause
}

// A round hangs if it is still running hangAfterDeadline after its deadline or hangAfterFault
// after the world has failed. The latter is before other ranks give up.
const (
	hangAfterDeadline = 30 * time.Second
	hangAfterFault    = 15 * time.Second
)

// watchForHang starts to watch a round, and calls OnHang if the round hangs. The caller must call
// stop when the round ends.
func (r *runner) watchForHang(env *environment, number int) (stop func()) {
	stopped := make(chan struct{})
	if r.rank.OnHang == nil {
		return func() {}
	}
	go func() {
		hang := time.After(r.config.RoundTimeout + hangAfterDeadline)
		for failed := env.rt.World().Ended(); ; {
			select {
			case <-stopped:
				return
			case <-failed:
				failed = nil // receive from it only once
				hang = time.After(min(hangAfterFault, r.config.Timeout/2))
			case <-hang:
				stacks := make([]byte, 1<<20)
				r.rank.OnHang(number, stacks[:runtime.Stack(stacks, true)])
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

// finishRound adds the results of all ranks to the report, and reports whether another round
// follows. Another round follows if rank 0 has reached no limit and no result is wrong.
func (r *runner) finishRound(
	ctx context.Context, env *environment, number int,
) (hasNext bool, err error) {
	r.completedRounds++
	all, err := workload.Gather(ctx, env.gatherer, roundResult{
		HasMoreRounds: r.config.hasMoreRounds(r.completedRounds, time.Since(r.started)), Tally: r.tally,
	})
	if err != nil {
		return false, err
	}
	hasNext = all[0].HasMoreRounds
	r.report.Tally = mergeTallies(all)
	r.report.Rounds = r.completedRounds
	r.report.ElapsedMS = r.elapsedMS()
	if r.report.Wrong > 0 {
		r.report.FirstWrongRound = number
		r.report.Findings = append(r.report.Findings, r.tally.findings...)
		hasNext = false
	}
	return hasNext, r.reportProgress(env, number, hasNext)
}

// reportProgress calls OnRound and, after a warm-up round, stores the resource usage.
func (r *runner) reportProgress(env *environment, number int, hasNext bool) error {
	now, err := r.measure()
	if err != nil {
		return err
	}
	if hasNext && r.completedRounds <= warmUpRounds && !r.rank.SharedProcess {
		r.warmUsage, r.hasWarmUsage = now, true
	}
	if r.rank.OnRound != nil {
		report := r.report
		r.rank.OnRound(fmt.Sprintf("round %d: seed %d, check %v, %d steps, %d calls, %d replays, "+
			"%d wrong, %s checked, peak memory %s, %s in pools, %s of the device, %.0f s", number,
			report.Seed, env.rt.Check(), report.Steps, report.Calls, report.Replays, report.Wrong,
			bytesText(report.Bytes), bytesText(report.PeakBytes), bytesText(now[poolBytes]),
			bytesText(now[deviceBytes]), report.ElapsedMS/1000))
	}
	return nil
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
	all, err := workload.Gather(ctx, r.environments[0].gatherer, [2]usage{r.warmUsage, end})
	if err != nil {
		return err
	}
	for rank, usages := range all {
		resources := r.compareResources(rank, usages[0], usages[1])
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
