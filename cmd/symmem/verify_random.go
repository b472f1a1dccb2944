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
	c.Config, c.MaxBytes = f.caseConfig.Config, int64(f.maxBytes)
	c.Skew = f.isSkewed || !flags.Changed("skew")
	if flags.Changed("rounds") {
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

// onHang returns a function that prints the rank's stacks when a round hangs, and exits. The
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

// finishRandom prints this rank's error and returns an error with the exit code.
func (f *verifyFlags) finishRandom(
	stderr io.Writer, w rendezvous.World, r *random.Report, err error,
) error {
	if r != nil {
		for _, finding := range r.Findings {
			fmt.Fprintf(stderr, "[rank %d] wrong: %s\n", w.Rank, finding)
		}
		if r.FirstWrongRound > 0 && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.repeatCommand(w, r.FirstWrongRound))
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "[rank %d] %v\n", w.Rank, err)
		if round, ok := errors.AsType[*random.RoundError](err); ok && w.Rank == 0 {
			fmt.Fprintf(stderr, "[rank %d] %s\n", w.Rank, f.repeatCommand(w, round.Round))
		}
		if r != nil && !r.OK() {
			return exitWith(exitWrong, nil)
		}
		return exitWith(exitFailed, nil)
	}
	if !r.OK() {
		return exitWith(exitWrong, nil)
	}
	return nil
}
