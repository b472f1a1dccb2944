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

// startTrial starts the ranks of a trial on this machine and collects their results. It returns an
// error only if a signal interrupts the trial. The Trial contains all other errors.
func (f *doctorFlags) startTrial(
	cmd *cobra.Command, facts *doctor.Facts,
) (*doctor.Trial, error) {
	usesGPUs := facts.Backend == "nccl"
	ranks := f.rankCount
	if ranks == 0 {
		const defaultHostRanks = 2
		ranks = defaultHostRanks
		if usesGPUs {
			ranks = max(1, len(facts.GPUs))
		}
	}

	self, err := os.Executable()
	if err != nil {
		return doctor.NewTrial(ranks, nil, fmt.Errorf("finding this program: %w", err)), nil
	}

	var sharingPlan *gpuSharing // nil unless ranks share GPUs
	if usesGPUs && ranks > len(facts.GPUs) {
		sharingPlan, err = checkSharing(ranks, &facts.Library, os.Environ())
		if err != nil {
			return doctor.NewTrial(ranks, nil, err), nil
		}
	}

	ctx, cancel := f.trialContext(cmd.Context())
	defer cancel()
	var output bytes.Buffer
	result, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), OmitPrefix: true,
		Command: []string{
			self, cmd.Name(), "--" + childRankFlag, "--backend=" + facts.Backend,
			"--timeout=" + f.timeout.String(),
		},
		Stdout: &output, Stderr: cmd.ErrOrStderr(),
	}, sharingPlan)
	if isInterrupted(&result) {
		interruptErr := fmt.Errorf("a signal interrupted the trial: %v", result.Signal)
		exitErr := exitWith(128+int(result.Signal), nil)
		return doctor.NewTrial(ranks, nil, interruptErr), exitErr
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("the trial took too long, and its ranks were killed")
	}

	rankResults := parseRankResults[doctor.RankResult](output.Bytes())
	missingErr := missingResultsError(&result, rankResults)
	trial := doctor.NewTrial(ranks, rankResults, errors.Join(err, missingErr))
	trial.Source = "started by doctor"
	return trial, nil
}

// rankResultPrefix begins each line that contains a result. NCCL may print other lines to the same
// output.
const rankResultPrefix = "result: "

// runChildRank runs the trial on a rank that doctor has started, and prints the result for doctor.
func (f *doctorFlags) runChildRank(cmd *cobra.Command, world rendezvous.World) error {
	result := runTrial(cmd.Context(), world, f.backend, f.timeout)
	return printRankResult(cmd, result)
}

// printRankResult prints this rank's result as JSON, which parseRankResults reads in the parent
// process.
func printRankResult(cmd *cobra.Command, result any) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return exitWith(exitFailed, fmt.Errorf("encoding the result of this rank: %w", err))
	}

	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s%s\n", rankResultPrefix, encoded)
	return exitWith(exitOK, err)
}

// parseRankResults returns the results in the output of ranks. It skips all other lines.
func parseRankResults[T any](output []byte) []T {
	results := []T{} // not nil, because JSON encodes nil as null
	for line := range bytes.Lines(output) {
		encoded, isResult := bytes.CutPrefix(line, []byte(rankResultPrefix))
		if !isResult {
			continue
		}

		var result T
		if err := json.Unmarshal(encoded, &result); err != nil {
			continue // for example, the rank was killed while it printed the line
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
