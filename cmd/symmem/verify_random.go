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

func (f *verifyFlags) parseRandom(flags *pflag.FlagSet) error {
	c := &f.randomConfig
	c.Config = f.caseConfig.Config
	c.MaxBytes = int64(f.maxBytes)
	c.Skew = f.isSkewed || !flags.Changed("skew") // on by default
	if flags.Changed("rounds") {                  // the default of --rounds is only for cases
		c.Rounds = f.rounds
	}
	return c.Validate()
}

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
		err = errors.Join(err, writeReport(stdout, f.json, report, report.WriteText))
	}
	return f.finishRandom(stderr, w, report, err)
}

// onHang returns a function that prints the stacks of a hanging round and ends this process. The
// launcher then stops the other ranks.
func (f *verifyFlags) onHang(w rendezvous.World, stderr io.Writer) func(int, []byte) {
	return func(round int, stacks []byte) {
		fmt.Fprintf(stderr, "[rank %d] round %d hangs; %s\n%s\n", w.Rank, round,
			f.repeatCommand(w, round), stacks)
		os.Exit(exitFailed)
	}
}

func (f *verifyFlags) repeatCommand(w rendezvous.World, round int) string {
	return fmt.Sprintf("to run it again: symmem verify --ranks %d %s", w.Size,
		random.FlagsToRepeat(&f.randomConfig, round))
}

// finishRandom prints this rank's findings and error, and returns an error with the exit code.
func (f *verifyFlags) finishRandom(
	stderr io.Writer, w rendezvous.World, report *random.Report, err error,
) error {
	if report != nil {
		for _, finding := range report.Findings {
			fmt.Fprintf(stderr, "[rank %d] wrong: %s\n", w.Rank, finding)
		}
		if report.FirstWrongRound > 0 && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.repeatCommand(w, report.FirstWrongRound))
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "[rank %d] %v\n", w.Rank, err)
		if roundErr, ok := errors.AsType[*random.RoundError](err); ok && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.repeatCommand(w, roundErr.Round))
		}
	}
	switch {
	case report != nil && !report.OK():
		return exitWith(exitWrong, nil)
	case err != nil:
		return exitWith(exitFailed, nil)
	}
	return nil
}
