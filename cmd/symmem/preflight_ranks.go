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

// preflightRank runs one rank's checks.
type preflightRank struct {
	flags      *preflightFlags
	world      rendezvous.World
	trial      trial
	result     preflight.RankResult
	allResults []preflight.RankResult // results of all ranks; nil if they could not be collected
}

// runChecks runs a rank's checks. The result contains any error.
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
	if err := r.trial.run(ctx, f.backend, f.timeout); err != nil && r.allResults == nil {
		result.Error, result.BlamedRanks = err.Error(), blamedRanks(err)
		result.IsDeadlinePassed = ctx.Err() != nil
		result.Calls = r.trial.result.Calls
		r.describeDevice()
		r.inspectNode()
	}
	return r
}

// blamedRanks returns the ranks that an error blames.
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

// describeDevice adds a description of the device to the result.
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

// collectResults measures the links and collects the results of all ranks.
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

// inspectNode adds doctor's findings about the node to the result, if this rank is the node's
// first.
func (r *preflightRank) inspectNode() {
	if r.world.LocalRank != 0 || r.result.NodeProblems != nil {
		return
	}
	facts := (&doctorFlags{backend: r.result.Backend}).collectFacts()
	r.result.NodeProblems = doctor.Examine(facts).Problems()
}

// isReporter reports whether this rank prints the report. The reporter is rank 0 or, if there is an
// error, the lowest rank that the error does not blame.
func (r *preflightRank) isReporter() bool {
	for rank := range r.world.Rank {
		if !slices.Contains(r.result.BlamedRanks, rank) {
			return false
		}
	}
	return true
}

// knownResults returns the results of all ranks. If they could not be collected, it returns only
// the result of this rank.
func (r *preflightRank) knownResults() []preflight.RankResult {
	if r.allResults != nil {
		return r.allResults
	}
	return []preflight.RankResult{r.result}
}

func (f *preflightFlags) startRanks(cmd *cobra.Command) error {
	ranks, sharingPlan, err := f.ranksToStart(cmd)
	if err != nil {
		return exitWith(exitUsage, err)
	}
	self, err := os.Executable()
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("finding this program: %w", err))
	}
	// Ranks that do not stop at the deadline are killed.
	ctx, cancel := context.WithTimeout(cmd.Context(), f.deadline+f.timeout+10*time.Second)
	defer cancel()
	var output bytes.Buffer
	result, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), OmitPrefix: true,
		Command: []string{
			self, cmd.Name(), "--" + startedRankFlag, "--backend=" + f.backend,
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
		return exitWith(exitUsage, fmt.Errorf("starting the ranks: %w", err))
	}
	o := preflight.Options{
		Ranks: ranks, ExpectAll: true, FirstExit: result.FirstFailed, Exits: map[int]string{},
	}
	for _, e := range result.Exits {
		o.Exits[e.Rank] = fmt.Sprintf("%v without a report", e)
		if err != nil { // the ranks were killed
			o.FirstExit = -1
			o.Exits[e.Rank] = fmt.Sprintf("rank %d did not exit before the deadline of %v", e.Rank,
				f.deadline)
		}
	}
	report := f.judgeResults(parseRankResults[preflight.RankResult](output.Bytes()), o)
	if err := f.writeResults(cmd, report, true, true); err != nil {
		return exitWith(exitUsage, err)
	}
	return exitWith(report.ExitCode(), nil)
}

// ranksToStart returns the number of ranks to start and, if they share GPUs, a description of the
// sharing.
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
