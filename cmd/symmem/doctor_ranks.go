package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// doctor starts its trial like this: it launches this program once for each rank, with a flag for
// child ranks. Each child opens the backend, makes calls, and prints a line such as:
//
//	result: {"rank":1,"windows":2,"calls":[...]}
//
// doctor, the parent, collects these lines. A child that fails before it prints its line has no
// result. Then, doctor reports how the child exited.

// startTrial runs a trial on this machine and returns its results. It returns an error only if a
// signal interrupts the trial. The Trial contains all other errors.
func (f *doctorFlags) startTrial(
	cmd *cobra.Command, facts *doctor.Facts,
) (*doctor.Trial, error) {
	ranks := f.trialRanks(facts)
	self, err := os.Executable()
	if err != nil {
		return doctor.NewTrial(ranks, nil, fmt.Errorf("finding this program: %w", err)), nil
	}

	var sharingPlan *gpuSharing // nil unless ranks share GPUs
	if usesGPUs(facts) && ranks > len(facts.GPUs) {
		sharingPlan, err = checkSharing(ranks, &facts.Library, os.Environ())
		if err != nil {
			return doctor.NewTrial(ranks, nil, err), nil
		}
	}

	ctx, cancel := f.trialContext(cmd.Context())
	defer cancel()
	var output bytes.Buffer
	launched, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), OmitPrefix: true,
		Command: []string{
			self, cmd.Name(), "--" + childRankFlag, "--backend=" + facts.Backend,
			"--timeout=" + f.timeout.String(),
		},
		Stdout: &output, Stderr: cmd.ErrOrStderr(),
	}, sharingPlan)
	if isInterrupted(&launched) {
		interruptErr := fmt.Errorf("a signal interrupted the trial: %v", launched.Signal)
		exitErr := exitWith(128+int(launched.Signal), nil)
		return doctor.NewTrial(ranks, nil, interruptErr), exitErr
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("the trial took too long, and its ranks were killed")
	}

	results := parseRankResults[doctor.RankResult](output.Bytes())
	missingErr := missingResultsError(&launched, results)
	trial := doctor.NewTrial(ranks, results, errors.Join(err, missingErr))
	trial.Source = "started by doctor"
	return trial, nil
}

func usesGPUs(facts *doctor.Facts) bool { return facts.Backend == "nccl" }

// trialRanks returns the number of ranks to start. By default, there is one for each GPU, or two on
// the host backend.
func (f *doctorFlags) trialRanks(facts *doctor.Facts) int {
	const defaultHostRanks = 2
	switch {
	case f.rankCount != 0:
		return f.rankCount
	case usesGPUs(facts):
		return max(1, len(facts.GPUs))
	default:
		return defaultHostRanks
	}
}

// rankResultPrefix begins each line with a result. NCCL may print other lines to the same output.
const rankResultPrefix = "result: "

// runChildRank runs the trial on a child rank, and prints the result.
func (f *doctorFlags) runChildRank(cmd *cobra.Command, world rendezvous.World) error {
	result := runTrial(cmd.Context(), world, f.backend, f.timeout)
	return printRankResult(cmd, result)
}

// printRankResult prints the result of this child rank.
func printRankResult(cmd *cobra.Command, result any) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return exitWith(exitFailed, fmt.Errorf("encoding the result of this rank: %w", err))
	}

	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s%s\n", rankResultPrefix, encoded)
	return exitWith(exitOK, err)
}

// parseRankResults returns the results in the output of all child ranks. It skips other lines.
func parseRankResults[T any](output []byte) []T {
	results := []T{} // not nil, because JSON encodes nil as null
	for line := range bytes.Lines(output) {
		encoded, isResult := bytes.CutPrefix(line, []byte(rankResultPrefix))
		if !isResult {
			continue
		}

		var result T
		if err := json.Unmarshal(encoded, &result); err != nil {
			continue // for example, the child was killed while it printed the line
		}

		results = append(results, result)
	}

	return results
}

// missingResultsError returns an error that says how the ranks without a result exited. If all
// ranks have printed a result, it returns nil.
func missingResultsError(launched *launch.Result, results []doctor.RankResult) error {
	hasResult := map[int]bool{} // by rank
	for _, r := range results {
		hasResult[r.Rank] = true
	}

	var errs []error
	for _, e := range launched.Exits {
		if !hasResult[e.Rank] {
			errs = append(errs, fmt.Errorf("%v without printing its result", e))
		}
	}

	return errors.Join(errs...)
}
