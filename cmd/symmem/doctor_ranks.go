package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/launch"
	"symmem/internal/rendezvous"
)

// startTrial starts a trial's ranks and collects their accounts. If a signal ends the ranks,
// startTrial returns an error, and the trial describes the signal.
func (f *doctorFlags) startTrial(
	cmd *cobra.Command, facts *doctor.Facts,
) (*doctor.Trial, error) {
	ranks := f.ranks
	switch {
	case ranks > 0:
	case facts.Backend == "nccl":
		ranks = max(1, len(facts.GPUs))
	default:
		ranks = 2
	}
	self, err := os.Executable()
	if err != nil {
		return doctor.Join(ranks, nil, fmt.Errorf("finding this program: %w", err)), nil
	}
	var shared *sharing
	if n := len(facts.GPUs); facts.Backend == "nccl" && ranks > n {
		if shared, err = checkSharing(ranks, &facts.Library, os.Environ()); err != nil {
			return doctor.Join(ranks, nil, err), nil
		}
	}
	ctx, cancel := f.trialContext(cmd.Context())
	defer cancel()
	var output bytes.Buffer
	result, err := runRanks(ctx, launch.Spec{
		Ranks: ranks, Env: os.Environ(), Plain: true,
		Command: []string{
			self, cmd.Name(), "--" + startedFlag, "--backend=" + facts.Backend,
			"--timeout=" + f.timeout.String(),
		},
		Stdout: &output, Stderr: cmd.ErrOrStderr(),
	}, shared)
	if interrupted(&result) {
		return doctor.Join(ranks, nil, fmt.Errorf("the trial was ended by a signal: %v", result.Signal)),
			exitWith(128+int(result.Signal), nil)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("the trial took too long, and its ranks were killed")
	}
	accounts := collect[doctor.Account](output.Bytes())
	trial := doctor.Join(ranks, accounts, errors.Join(err, missingAccounts(&result, accounts)))
	trial.Source = "started by doctor"
	return trial, nil
}

// accountMark marks lines that contain accounts, because NCCL may print other lines to the same
// output.
const accountMark = "account: "

func (f *doctorFlags) writeAccount(cmd *cobra.Command, world rendezvous.World) error {
	return printAccount(cmd, runTrial(cmd.Context(), world, f.backend, f.timeout))
}

// printAccount prints this rank's account for the process that started the rank.
func printAccount(cmd *cobra.Command, account any) error {
	encoded, err := json.Marshal(account)
	if err != nil {
		return exitWith(exitUsage, fmt.Errorf("encoding the account of this rank: %w", err))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s%s\n", accountMark, encoded)
	return exitWith(exitOK, err)
}

// collect extracts the accounts from the ranks' output.
func collect[T any](output []byte) []T {
	accounts := []T{}
	for line := range bytes.Lines(output) {
		encoded, ok := bytes.CutPrefix(line, []byte(accountMark))
		var account T
		if ok && json.Unmarshal(encoded, &account) == nil {
			accounts = append(accounts, account)
		}
	}
	return accounts
}

// missingAccounts returns an error that names the ranks without an account.
func missingAccounts(result *launch.Result, accounts []doctor.Account) error {
	var errs []error
	for _, e := range result.Exits {
		isFrom := func(a doctor.Account) bool { return a.Rank == e.Rank }
		if !slices.ContainsFunc(accounts, isFrom) {
			errs = append(errs, fmt.Errorf("%v without a report", e))
		}
	}
	return errors.Join(errs...)
}
