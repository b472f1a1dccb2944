package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"

	"symmem"
	"symmem/cmd/symmem/internal/doctor"
	"symmem/cmd/symmem/internal/verify/random"
	"symmem/internal/rendezvous"
)

// parseRandom completes and validates randomConfig.
func (f *verifyFlags) parseRandom(flags *pflag.FlagSet) error {
	c := &f.randomConfig
	c.Config = f.caseConfig.Config // the flags that both kinds share
	c.MaxBytes = int64(f.maxBytes)
	// The defaults of --skew and --rounds are for cases. Random programs have their own.
	c.Skew = true
	if flags.Changed("skew") {
		c.Skew = f.isSkewed
	}

	if flags.Changed("rounds") {
		c.Rounds = f.rounds
	}

	return c.Validate()
}

// runRandom runs rounds of random steps on this rank. Rank 0 prints the report about all ranks.
func (f *verifyFlags) runRandom(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) error {
	rank := random.Rank{Open: symmem.Open, LocalRank: w.LocalRank, OnHang: f.onHang(w, stderr)}
	if w.Rank == 0 {
		rank.OnRound = func(line string) { fmt.Fprintln(stderr, line) }
	}

	f.randomConfig.SharedGPUs = os.Getenv(doctor.SharingVariable) == "1"
	report, err := random.Run(ctx, f.randomConfig, rank)
	if report != nil && w.Rank == 0 {
		writeErr := writeReport(stdout, f.json, report)
		err = errors.Join(err, writeErr)
	}

	return f.finishRandom(stderr, w, report, err)
}

// onHang returns a function that prints the stacks of all goroutines, and ends this process. The
// launcher then stops the other ranks.
func (f *verifyFlags) onHang(
	w rendezvous.World, stderr io.Writer,
) func(round int, stacks []byte) {
	return func(round int, stacks []byte) {
		fmt.Fprintf(stderr, "[rank %d] round %d hangs; %s\n%s\n", w.Rank, round,
			f.howToRepeat(w, round), stacks)
		os.Exit(exitIncomplete)
	}
}

// howToRepeat returns advice with the command that runs only this round again.
func (f *verifyFlags) howToRepeat(w rendezvous.World, round int) string {
	return fmt.Sprintf("to run it again: symmem verify --ranks %d %s", w.Size,
		random.FlagsToRepeat(&f.randomConfig, round))
}

// finishRandom prints this rank's findings and error, and returns an error that carries the exit
// code. The report may be nil.
func (f *verifyFlags) finishRandom(
	stderr io.Writer, w rendezvous.World, report *random.Report, err error,
) error {
	prefix := fmt.Sprintf("[rank %d] ", w.Rank)
	if report != nil {
		for _, finding := range report.Findings {
			fmt.Fprintf(stderr, "%swrong: %s\n", prefix, finding)
		}

		if report.FirstWrongRound > 0 && w.Rank == 0 {
			fmt.Fprintf(stderr, "%s%s\n", prefix, f.howToRepeat(w, report.FirstWrongRound))
		}
	}

	if err != nil {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		roundErr, isRoundError := errors.AsType[*random.RoundError](err)
		if isRoundError && w.Rank == 0 {
			fmt.Fprintf(stderr, "%s%s\n", prefix, f.howToRepeat(w, roundErr.Round))
		}
	}

	switch {
	case report != nil && !report.OK():
		return exitWith(exitBadResult, nil)
	case err != nil:
		return exitWith(exitIncomplete, nil)
	}

	return nil
}
