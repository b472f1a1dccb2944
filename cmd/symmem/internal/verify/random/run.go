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
	// Open opens a Runtime for the rank. Run calls it once for each check level.
	Open Open
	// Local is the number of the rank on its machine.
	Local int
	// Shared is set if the process also runs other ranks. Run then does not compare resource usage,
	// because the usage of a single rank cannot be measured.
	Shared bool
	// Progress, if set, is called after each round.
	Progress func(line string)
	// Hang, if set, is called if a round is still running long after its deadline. stacks contains
	// the stacks of all goroutines.
	Hang func(round int, stacks []byte)
}

type runner struct {
	config  Config
	rank    Rank
	worlds  []*world
	report  *Report
	tally   Tally
	started time.Time
	// start is the resource usage after the warm-up. It is valid only if warm is set.
	start usage
	warm  bool
	done  int
}

// warmUpRounds is the number of rounds at the start of a run whose resource usage is ignored,
// because libraries may still be initializing. There is one for each check level.
const warmUpRounds = 3

// RoundError reports a round that failed.
type RoundError struct {
	// Round is the number of the round, and Seed the seed of the run.
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

// Run runs random programs as one rank. All ranks of the world must call it. It stops after the
// first round with a wrong result. If a round fails, Run returns a *RoundError and a Report with
// the results so far. With any other error, the Report may be nil.
func Run(ctx context.Context, c Config, rank Rank) (report *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &runner{config: c, rank: rank, started: time.Now()}
	defer func() {
		for _, w := range p.worlds {
			if closeErr := w.close(); err == nil {
				// If the run has failed, Close returns the same error again.
				err = closeErr
			}
		}
	}()
	for _, level := range c.levels() {
		w, err := newWorld(ctx, rank.Open, &c, level)
		if err != nil {
			return nil, fmt.Errorf("opening the world with check level %v: %w", level, err)
		}
		p.worlds = append(p.worlds, w)
	}
	p.report = newReport(p.worlds[0].rt, &c)
	return p.report, p.play(ctx)
}

func (r *runner) backend() string { return r.worlds[0].rt.Device().Backend }

func (r *runner) play(ctx context.Context) error {
	for continues := true; continues; {
		number := r.config.From + r.done
		w := r.worlds[number%len(r.worlds)]
		if err := r.runRound(ctx, w, number); err != nil {
			return &RoundError{number, r.config.Seed, r.gatherFailure(ctx, w, number, err)}
		}
		var err error
		if continues, err = r.finishRound(ctx, w, number); err != nil {
			return &RoundError{number, r.config.Seed, err}
		}
	}
	return r.compare(ctx)
}

// gatherFailure is called after a round has failed. It combines the results of all ranks in the
// report, because ranks outside the failed group do not know why the round failed. It returns
// cause, which is this rank's error.
func (r *runner) gatherFailure(ctx context.Context, w *world, number int, cause error) error {
	r.report.Differs = errors.As(cause, new(*symmem.DivergenceError)) || errors.Is(cause, ErrInUse)
	r.report.Findings = append(r.report.Findings, r.tally.findings...)
	r.report.Wrong, r.report.Broke = r.tally.Wrong, number
	all, err := workload.Gather(ctx, w.gatherer, r.report)
	if err != nil {
		return errors.Join(cause, err)
	}
	r.report.Wrong = 0
	for _, other := range all {
		r.report.Differs = r.report.Differs || other.Differs
		r.report.Wrong += other.Wrong
	}
	if r.report.Wrong > 0 {
		r.report.FirstWrong = number
	}
	return cause
}

// A round counts as hung if it is still running when overtime has passed since its deadline, or
// when afterFault has passed since the world failed, because the failure ends all waits. afterFault
// is shorter than the time for which other ranks wait, so that a rank reports the hang before the
// others give up.
const (
	overtime   = 30 * time.Second
	afterFault = 15 * time.Second
)

// watch calls Hang if a round hangs. The caller must call stop when the round ends.
func (r *runner) watch(w *world, number int) (stop func()) {
	stopped := make(chan struct{})
	if r.rank.Hang == nil {
		return func() {}
	}
	go func() {
		deadline := time.After(r.config.RoundTimeout + overtime)
		for failed := w.rt.World().Ended(); ; {
			select {
			case <-stopped:
				return
			case <-failed:
				failed, deadline = nil, time.After(min(afterFault, r.config.Timeout/2))
			case <-deadline:
				stacks := make([]byte, 1<<20)
				r.rank.Hang(number, stacks[:runtime.Stack(stacks, true)])
				return
			}
		}
	}()
	return func() { close(stopped) }
}

func (r *runner) runRound(ctx context.Context, w *world, number int) error {
	ctx, cancel := context.WithTimeout(ctx, r.config.RoundTimeout)
	defer cancel()
	defer r.watch(w, number)()
	current := newRound(w, &r.config, number, &r.tally)
	err := current.run(ctx)
	if err != nil {
		workload.Abort(current.groups.all...) // Other ranks must not wait for this rank.
	}
	return err
}

// finishRound exchanges the results of the ranks after a round. It reports whether another round
// follows, which rank 0 decides by its clock.
func (r *runner) finishRound(
	ctx context.Context, w *world, number int,
) (continues bool, err error) {
	r.done++
	all, err := workload.Gather(ctx, w.gatherer, roundResult{
		More: r.config.continues(r.done, time.Since(r.started)), Tally: r.tally,
	})
	if err != nil {
		return false, err
	}
	continues = all[0].More
	r.report.Tally = mergeTallies(all)
	r.report.Rounds = r.done
	r.report.ElapsedMS = float64(time.Since(r.started).Microseconds()) / 1000
	if r.report.Wrong > 0 {
		r.report.FirstWrong = number
		r.report.Findings = append(r.report.Findings, r.tally.findings...)
		continues = false
	}
	return continues, r.reportProgress(w, number, continues)
}

// reportProgress calls Progress after a round. After a warm-up round, it also stores the
// resource usage in r.start.
func (r *runner) reportProgress(w *world, number int, continues bool) error {
	now, err := r.measure()
	if err != nil {
		return err
	}
	if continues && r.done <= warmUpRounds && !r.rank.Shared {
		r.start, r.warm = now, true
	}
	if r.rank.Progress != nil {
		report := r.report
		r.rank.Progress(fmt.Sprintf("round %d: seed %d, check %v, %d steps, %d calls, %d replays, "+
			"%d wrong, %s checked, %s mapped at most, %s in pools, %s of the device, %.0f s", number,
			report.Seed, w.rt.Check(), report.Steps, report.Calls, report.Replays, report.Wrong,
			bytesText(report.Bytes), bytesText(report.Peak), bytesText(now[poolBytes]),
			bytesText(now[deviceBytes]), report.ElapsedMS/1000))
	}
	return nil
}

// compare adds to the report how each rank's resource usage has changed since the warm-up.
func (r *runner) compare(ctx context.Context) error {
	if !r.warm || r.done <= warmUpRounds || r.report.Wrong > 0 {
		return nil
	}
	end, err := r.usageAfterWork(ctx)
	if err != nil {
		return err
	}
	all, err := workload.Gather(ctx, r.worlds[0].gatherer, [2]usage{r.start, end})
	if err != nil {
		return err
	}
	for rank, usages := range all {
		r.report.Resources = append(r.report.Resources, r.resources(rank, usages[0], usages[1])...)
	}
	return nil
}

// Reproduce returns the flags that repeat a round on the same number of ranks.
func Reproduce(c *Config, round int) string {
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
