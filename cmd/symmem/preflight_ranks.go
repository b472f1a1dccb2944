package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/cmd/symmem/internal/preflight"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// preflight checks the ranks of a job. Each rank runs checks, and has a result. For example, rank 3
// is stopped. Ranks 0, 1 and 2 wait for it until the timeout. Then, their results contain this
// error, and they blame rank 3 for it.
//
//   - Under a launcher, this process is one of the ranks. At the end of the checks, the ranks
//     exchange their results, and rank 0 reports them. After an error, as in the example, they
//     cannot exchange results, so rank 0 reports only its own.
//   - Without a launcher, this process is the parent: it starts the ranks, and reports the results
//     that they print.

// preflightRank holds the checks of this process as a rank of the job, and their results.
type preflightRank struct {
	flags      *preflightFlags
	world      rendezvous.World       // this process's rank, and the number of ranks
	trial      trial                  // the first check: all-reduces
	result     preflight.RankResult   // of this rank
	allResults []preflight.RankResult // by rank; nil unless the ranks have exchanged them
}

// runChecks runs this rank's checks. If one cannot finish, the result contains the error.
func (f *preflightFlags) runChecks(ctx context.Context, world rendezvous.World) *preflightRank {
	r := &preflightRank{flags: f, world: world}
	result := &r.result
	result.Rank = world.Rank
	result.Source = string(world.Source)
	result.Backend = f.backend
	result.Links = []preflight.Link{}
	node, err := os.Hostname()
	if err != nil {
		node = "unknown"
	}

	result.Node = node
	r.trial.result.Calls = []doctor.TrialCall{}
	r.trial.afterCalls = r.collectResults
	r.trial.openTimeout = 2 * f.timeout // ranks do not start at the same time
	// The watch measures how long this process did not run, for example because it was stopped.
	watch, stopWatch := startStallWatch(f.startTime)
	defer stopWatch()
	err = r.trial.run(ctx, f.backend, f.timeout)
	haveExchanged := r.allResults != nil // if so, an error is only that of closing the Runtime
	if err == nil || haveExchanged {
		return r
	}

	r.setError(err, watch.longestStall(time.Now()))
	result.IsDeadlinePassed = ctx.Err() != nil
	result.Calls = r.trial.result.Calls
	r.describeDevice()
	r.inspectNode()
	return r
}

// setError stores err and the ranks to blame for it in the result. stall is the longest time in
// which this process did not run. After a long stall, the error may be this rank's own fault, so
// setError blames no other rank.
func (r *preflightRank) setError(err error, stall time.Duration) {
	r.result.Error = err.Error()
	r.result.BlamedRanks = blamedRanks(err)
	isStallLong := stall >= r.flags.timeout/2
	if isStallLong {
		r.result.Error = fmt.Sprintf("this process did not run for %v, because it was stopped or its "+
			"node was overloaded: %v", stall.Round(time.Millisecond), err)
		r.result.BlamedRanks = nil
	}
}

// blamedRanks returns the ranks that err names as lost, late or failed.
func blamedRanks(err error) []int {
	if e, ok := errors.AsType[*symmem.RankLostError](err); ok {
		return e.Ranks
	}

	if e, ok := errors.AsType[*symmem.TimeoutError](err); ok {
		return e.Missing
	}

	if e, ok := errors.AsType[*symmem.PeerError](err); ok {
		return e.Ranks
	}

	return nil
}

// describeDevice stores the backend and the device of this rank in the result.
func (r *preflightRank) describeDevice() {
	if r.trial.rt == nil { // symmem could not be opened
		return
	}

	result := &r.result
	device := r.trial.rt.Device()
	result.Backend = device.Backend
	result.Device = device.Name
	result.Source = r.trial.rt.Source()
	isGPU := !device.Addressable // processors cannot access the memory of GPUs
	if !isGPU {
		return
	}

	result.GPU = device.Name
	gpuCount, err := symmem.LocalRanks(device.Backend)
	if err == nil && gpuCount > 0 {
		ordinal := r.world.LocalRank % gpuCount // symmem chooses a rank's GPU in the same way
		result.GPU = fmt.Sprintf("%d (%s)", ordinal, device.Name)
	}
}

// collectResults runs the other check, which measures the links between ranks. Then, it exchanges
// the results. All ranks must call it.
func (r *preflightRank) collectResults(ctx context.Context) error {
	r.result.Calls = r.trial.result.Calls
	r.describeDevice()
	r.inspectNode()
	rt := r.trial.rt
	gatherer, err := workload.NewGatherer(ctx, rt, rt.World(), rt.DefaultStream())
	if err != nil {
		return err
	}

	r.result.Links, err = preflight.MeasureLinks(ctx, rt, gatherer, r.trial.buffer.Memory(),
		r.flags.tolerance)
	if err != nil {
		return err
	}

	r.allResults, err = workload.Gather(ctx, gatherer, r.result)
	return err
}

// inspectNode stores the problems that doctor finds on this node in the result, if this rank is
// the first on its node. A second call does nothing.
func (r *preflightRank) inspectNode() {
	isFirstOfNode := r.world.LocalRank == 0
	isDone := r.result.NodeProblems != nil
	if !isFirstOfNode || isDone {
		return
	}

	facts := (&doctorFlags{backend: r.result.Backend}).collectFacts()
	r.result.NodeProblems = doctor.Examine(facts).Problems()
}

// isReporter reports whether this rank prints the report. Rank 0 prints it. If ranks are lost, the
// lowest remaining rank prints it too: the one whose error blames all lower ranks.
func (r *preflightRank) isReporter() bool {
	for rank := range r.world.Rank {
		if !slices.Contains(r.result.BlamedRanks, rank) {
			return false
		}
	}

	return true
}

// knownResults returns the results of all ranks or, if they were not exchanged, only that of this
// rank.
func (r *preflightRank) knownResults() []preflight.RankResult {
	if r.allResults != nil {
		return r.allResults
	}

	return []preflight.RankResult{r.result}
}

// startRanks starts the ranks on this machine, waits for them and writes a report about their
// results.
func (f *preflightFlags) startRanks(cmd *cobra.Command) error {
	ranks, plan, err := f.ranksToStart(cmd)
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	self, err := os.Executable()
	if err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("finding this program: %w", err))
	}

	// Ranks that do not stop at the deadline are killed.
	ctx, cancel := context.WithTimeout(cmd.Context(), f.deadline+f.timeout+10*time.Second)
	defer cancel()
	var output bytes.Buffer
	launched, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), OmitPrefix: true,
		Command: []string{
			self, cmd.Name(), "--" + childRankFlag, "--backend=" + f.backend,
			"--timeout=" + f.timeout.String(), "--deadline=" + f.deadline.String(),
			fmt.Sprint("--tolerance=", f.tolerance),
		},
		Stdout: &output, Stderr: cmd.ErrOrStderr(),
	}, plan)
	if isInterrupted(&launched) {
		report := f.judgeResults(nil, preflight.Options{Ranks: ranks, FirstExit: noRank})
		report.AddInterrupt(launched.Signal.String())
		err := errors.Join(f.printReport(cmd, report), f.writeMetrics(report))
		return exitWith(128+int(launched.Signal), err)
	}

	wereKilled := errors.Is(err, context.DeadlineExceeded)
	if err != nil && !wereKilled {
		return exitWith(exitIncomplete, fmt.Errorf("starting the ranks: %w", err))
	}

	results := parseRankResults[preflight.RankResult](output.Bytes())
	report := f.judgeResults(results, f.exitOptions(&launched, ranks, wereKilled))
	if err := errors.Join(f.printReport(cmd, report), f.writeMetrics(report)); err != nil {
		return exitWith(exitIncomplete, err)
	}

	return exitWith(report.ExitCode(), nil)
}

// noRank is the value of preflight.Options.FirstExit if no rank is known to have exited first.
const noRank = -1

// exitOptions returns options for the report that describe how the ranks exited. wereKilled states
// whether they were killed after the deadline.
func (f *preflightFlags) exitOptions(
	launched *launch.Result, ranks int, wereKilled bool,
) preflight.Options {
	o := preflight.Options{
		Ranks: ranks, ExpectAll: true, FirstExit: launched.FirstFailed, Exits: map[int]string{},
	}
	if wereKilled {
		o.FirstExit = noRank
	}

	for _, e := range launched.Exits { // those of ranks with a result will be ignored
		if wereKilled {
			o.Exits[e.Rank] = fmt.Sprintf("rank %d did not exit before the deadline of %v", e.Rank,
				f.deadline)
		} else {
			o.Exits[e.Rank] = fmt.Sprintf("%v without printing its result", e)
		}
	}

	return o
}

// ranksToStart returns the number of ranks to start, and how they share GPUs (nil if they do not).
func (f *preflightFlags) ranksToStart(cmd *cobra.Command) (int, *sharingPlan, error) {
	ranks := f.rankCount
	if ranks == automaticRanks {
		gpuCount, err := symmem.LocalRanks(f.backend)
		if err != nil {
			return 0, nil, err
		}

		ranks = min(gpuCount, maxRanks)
		if gpuCount == 0 {
			ranks = 2 // on the host backend
		}
	}

	return planRanks(ranks, cmd.Flags().Changed("ranks"), f.backend)
}
