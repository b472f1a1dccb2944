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

type preflightRank struct {
	flags      *preflightFlags
	world      rendezvous.World
	trial      trial
	result     preflight.RankResult
	allResults []preflight.RankResult // nil if the results could not be collected
}

// runChecks runs this rank's checks. An error is stored in the result.
func (f *preflightFlags) runChecks(ctx context.Context, world rendezvous.World) *preflightRank {
	r := &preflightRank{flags: f, world: world}
	result := &r.result
	result.Rank, result.Source, result.Backend = world.Rank, string(world.Source), f.backend
	result.Links = []preflight.Link{}
	var err error
	if result.Node, err = os.Hostname(); err != nil {
		result.Node = "unknown"
	}
	r.trial.result.Calls = []doctor.TrialCall{}
	r.trial.afterCalls, r.trial.openTimeout = r.collectResults, 2*f.timeout
	watch, stopWatch := startStallWatch(f.startTime)
	defer stopWatch()
	if err := r.trial.run(ctx, f.backend, f.timeout); err != nil && r.allResults == nil {
		r.setError(err, watch.longestStall(time.Now()))
		result.IsDeadlinePassed = ctx.Err() != nil
		result.Calls = r.trial.result.Calls
		r.describeDevice()
		r.inspectNode()
	}
	return r
}

// setError blames other ranks for err, unless this process did not run for half of the time that
// they wait for it.
func (r *preflightRank) setError(err error, stall time.Duration) {
	r.result.Error, r.result.BlamedRanks = err.Error(), blamedRanks(err)
	if stall >= r.flags.timeout/2 {
		r.result.Error = fmt.Sprintf("this process did not run for %v, because it was stopped or its "+
			"node was overloaded: %v", stall.Round(time.Millisecond), err)
		r.result.BlamedRanks = nil
	}
}

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

func (r *preflightRank) describeDevice() {
	if r.trial.rt == nil {
		return
	}
	result, device := &r.result, r.trial.rt.Device()
	result.Backend, result.Device, result.Source = device.Backend, device.Name, r.trial.rt.Source()
	if device.Addressable { // memory that processors can access is not on a GPU
		return
	}
	result.GPU = device.Name
	if gpuCount, err := symmem.LocalRanks(device.Backend); err == nil && gpuCount > 0 {
		result.GPU = fmt.Sprintf("%d (%s)", r.world.LocalRank%gpuCount, device.Name)
	}
}

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

// inspectNode adds doctor's findings to the result of the first rank on each node.
func (r *preflightRank) inspectNode() {
	if r.world.LocalRank != 0 || r.result.NodeProblems != nil {
		return
	}
	facts := (&doctorFlags{backend: r.result.Backend}).collectFacts()
	r.result.NodeProblems = doctor.Examine(facts).Problems()
}

// isReporter reports whether this rank prints the report. That is the lowest rank that this rank's
// error does not blame.
func (r *preflightRank) isReporter() bool {
	for rank := range r.world.Rank {
		if !slices.Contains(r.result.BlamedRanks, rank) {
			return false
		}
	}
	return true
}

// knownResults returns the results of all ranks or, if these could not be collected, that of this
// rank.
func (r *preflightRank) knownResults() []preflight.RankResult {
	if r.allResults != nil {
		return r.allResults
	}
	return []preflight.RankResult{r.result}
}

func (f *preflightFlags) startRanks(cmd *cobra.Command) error {
	ranks, sharingPlan, err := f.ranksToStart(cmd)
	if err != nil {
		return exitWith(exitFailed, err)
	}
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitFailed, fmt.Errorf("finding this program: %w", err))
	}
	// Ranks that do not stop at the deadline are killed.
	ctx, cancel := context.WithTimeout(cmd.Context(), f.deadline+f.timeout+10*time.Second)
	defer cancel()
	var output bytes.Buffer
	result, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), OmitPrefix: true,
		Command: []string{
			self, cmd.Name(), "--" + childRankFlag, "--backend=" + f.backend,
			"--timeout=" + f.timeout.String(), "--deadline=" + f.deadline.String(),
			fmt.Sprint("--tolerance=", f.tolerance),
		},
		Stdout: &output, Stderr: cmd.ErrOrStderr(),
	}, sharingPlan)
	if isInterrupted(&result) {
		report := f.judgeResults(nil, preflight.Options{Ranks: ranks, FirstExit: -1})
		report.AddInterrupt(result.Signal.String())
		return exitWith(128+int(result.Signal), f.writeResults(cmd, report, true, true))
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return exitWith(exitFailed, fmt.Errorf("starting the ranks: %w", err))
	}
	o := preflight.Options{
		Ranks: ranks, ExpectAll: true, FirstExit: result.FirstFailed, Exits: map[int]string{},
	}
	for _, e := range result.Exits {
		o.Exits[e.Rank] = fmt.Sprintf("%v without printing its result", e)
		if err != nil { // the ranks were killed
			o.FirstExit = -1
			o.Exits[e.Rank] = fmt.Sprintf("rank %d did not exit before the deadline of %v", e.Rank,
				f.deadline)
		}
	}
	report := f.judgeResults(parseRankResults[preflight.RankResult](output.Bytes()), o)
	if err := f.writeResults(cmd, report, true, true); err != nil {
		return exitWith(exitFailed, err)
	}
	return exitWith(report.ExitCode(), nil)
}

// ranksToStart returns the number of ranks to start. The gpuSharing is nil unless ranks share GPUs.
func (f *preflightFlags) ranksToStart(cmd *cobra.Command) (int, *gpuSharing, error) {
	ranks := f.rankCount
	if ranks == 0 {
		gpuCount, err := symmem.LocalRanks(f.backend)
		if err != nil {
			return 0, nil, err
		}
		if ranks = min(gpuCount, maxRanks); gpuCount == 0 {
			ranks = 2 // on the host
		}
	}
	return planRanks(ranks, cmd.Flags().Changed("ranks"), f.backend)
}
