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
)

// launchTrial runs a trial in one child process per rank. Each child prints a line such as:
//
//	result: {"rank":1,"calls":[...]}
//
// Trial.Error holds any error. After an interrupt, launchTrial also returns an error with the exit
// code.
func (f *doctorFlags) launchTrial(
	cmd *cobra.Command, facts *doctor.Facts,
) (*doctor.Trial, error) {
	ranks := f.trialRankCount(facts)
	command, err := f.trialCommand(cmd.Name(), facts.Backend)
	if err != nil {
		return doctor.NewTrial(ranks, nil, err), nil
	}

	plan, err := planGPUSharing(ranks, facts)
	if err != nil {
		return doctor.NewTrial(ranks, nil, err), nil
	}

	ctx, cancel := f.trialContext(cmd.Context())
	defer cancel()
	var output bytes.Buffer // of all children
	launched, launchErr := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), Command: command,
		Stdout: &output, OmitPrefix: true, Stderr: cmd.ErrOrStderr(),
	}, plan)
	if isInterrupted(&launched) {
		interruptErr := fmt.Errorf("a signal interrupted the trial: %v", launched.Signal)
		exitErr := exitWith(128+int(launched.Signal), nil)
		return doctor.NewTrial(ranks, nil, interruptErr), exitErr
	}

	if errors.Is(launchErr, context.DeadlineExceeded) {
		launchErr = errors.New("the trial took too long, and its ranks were killed")
	}

	results := parseRankResults[doctor.RankResult](output.Bytes())
	missingErr := missingResultsError(&launched, results)
	trial := doctor.NewTrial(ranks, results, errors.Join(launchErr, missingErr))
	trial.Source = "started by doctor" // instead of the launcher that rank 0 detected
	return trial, nil
}

// trialRankCount returns the number of ranks to start: by default one per GPU, or two on the host
// backend.
func (f *doctorFlags) trialRankCount(facts *doctor.Facts) int {
	const defaultHostRanks = 2
	switch {
	case f.rankCount != automaticRanks:
		return f.rankCount
	case usesGPUs(facts):
		return max(1, len(facts.GPUs))
	default:
		return defaultHostRanks
	}
}

func usesGPUs(facts *doctor.Facts) bool { return facts.Backend == "nccl" }

// trialCommand returns the command line of each child: this program, with the same subcommand.
func (f *doctorFlags) trialCommand(subcommand, backend string) ([]string, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}

	return []string{
		program, subcommand, "--" + childRankFlag, "--backend=" + backend,
		"--timeout=" + f.timeout.String(),
	}, nil
}

// planGPUSharing returns nil if ranks need not share GPUs.
func planGPUSharing(ranks int, facts *doctor.Facts) (*sharingPlan, error) {
	mustShare := usesGPUs(facts) && ranks > len(facts.GPUs)
	if !mustShare {
		return nil, nil
	}

	return newSharingPlan(ranks, &facts.Library, os.Environ())
}

// rankResultPrefix begins the line with a rank's result. NCCL may print other lines.
const rankResultPrefix = "result: "

// printRankResult prints a result line for the parent process.
func printRankResult(cmd *cobra.Command, result any) error {
	encoded, err := json.Marshal(result)
	if err != nil {
		return exitWith(exitIncomplete, fmt.Errorf("encoding the result of this rank: %w", err))
	}

	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s%s\n", rankResultPrefix, encoded); err != nil {
		return exitWith(exitIncomplete, err)
	}

	return nil
}

// parseRankResults returns the results in the joint output of all children.
func parseRankResults[T any](output []byte) []T {
	results := []T{} // encoded as [] in JSON, unlike nil
	for line := range bytes.Lines(output) {
		encoded, isResult := bytes.CutPrefix(line, []byte(rankResultPrefix))
		if !isResult {
			continue
		}

		var result T
		if err := json.Unmarshal(encoded, &result); err != nil {
			continue // a killed child may print part of a line
		}

		results = append(results, result)
	}

	return results
}

// missingResultsError describes how each rank without a result exited.
func missingResultsError(launched *launch.Result, results []doctor.RankResult) error {
	hasResult := map[int]bool{}
	for _, r := range results {
		hasResult[r.Rank] = true
	}

	var errs []error
	for _, exit := range launched.Exits {
		if !hasResult[exit.Rank] {
			errs = append(errs, fmt.Errorf("%v without printing its result", exit))
		}
	}

	return errors.Join(errs...)
}
