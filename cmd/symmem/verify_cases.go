package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"symmem"
	"symmem/cmd/symmem/internal/verify"
	"symmem/internal/rendezvous"
)

// parseCases completes and checks the configuration of cases. --path has precedence over
// SYMMEM_PATH, and SYMMEM_PATH has precedence over the default.
func (f *verifyFlags) parseCases(flags *pflag.FlagSet) error {
	c := &f.caseConfig
	c.Elements = int64(f.caseSize)
	c.Rounds = f.rounds
	c.Skew = f.isSkewed
	if flags.Changed("path") {
		return c.Validate()
	}
	if value := os.Getenv(pathVariable); value != "" {
		var err error
		if c.Path, err = symmem.ParsePathChoice(value); err != nil {
			return fmt.Errorf("%s: %w", pathVariable, err)
		}
	} else if flags.Changed("deterministic") {
		c.Path = symmem.PathAuto // NCCL's window path does not use the formula
	}
	return c.Validate()
}

// pathVariable is the environment variable that sets the default of Options.Path.
const pathVariable = "SYMMEM_PATH"

func (f *verifyFlags) runCases(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) (err error) {
	prefix := fmt.Sprintf("[rank %d] ", w.Rank)
	printError := func(err error) error {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitFailed, nil)
	}
	if err := f.prover.Start(); err != nil {
		return printError(err)
	}
	defer f.prover.Close(&err)
	rt, err := symmem.Open(ctx, f.caseConfig.Options())
	if err != nil {
		return printError(err)
	}
	report, err := verify.Run(ctx, rt, f.caseConfig, newProgress(w.Rank, stderr))
	if report == nil {
		return printError(errors.Join(err, rt.Close()))
	}
	if w.Rank == 0 {
		err = errors.Join(err, writeReport(stdout, f.json, report, report.WriteText),
			f.writeKernels(stdout, report))
	}
	err = errors.Join(err, omitRepeatedError(report, rt.Close()))
	return finishCases(stderr, prefix, report, err)
}

// writeKernels writes which kernels ran, if --prove is set. With --json, it writes nothing.
func (f *verifyFlags) writeKernels(w io.Writer, r *verify.Report) error {
	if f.json {
		return nil
	}
	for i := range r.Cases {
		f.prover.AddCall("AllReduce", r.Cases[i].Size, elementBytes)
	}
	return f.prover.Write(w, "")
}

// omitRepeatedError returns the error of Close, or nil if the report contains a fault, which Close
// only repeats.
func omitRepeatedError(r *verify.Report, err error) error {
	if r.Divergence == nil && r.Fault == "" {
		return err
	}
	return nil
}

func newProgress(rank int, stderr io.Writer) func(done, all int) {
	switch {
	case rank != 0:
		return nil
	case os.Getenv(envProgress) == "lines":
		return progressLines(stderr, "steps")
	case isTerminal(stderr):
		return progressLines(&progressCounter{terminal: stderr}, "steps")
	}
	return nil
}

// finishCases prints this rank's error and returns an error with the exit code.
func finishCases(stderr io.Writer, prefix string, r *verify.Report, err error) error {
	if r.Divergence != nil {
		fmt.Fprintf(stderr, "%sdivergence: %s\n", prefix, r.Divergence.Message)
		return exitWith(exitWrong, nil)
	}
	if r.Fault != "" {
		rankName := strings.Trim(prefix, "[] ") + ": " // begins some faults as well
		fmt.Fprintf(stderr, "%s%s\n", prefix, strings.TrimPrefix(r.Fault, rankName))
		return exitWith(exitFailed, nil)
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitFailed, nil)
	}
	if !r.OK() {
		return exitWith(exitWrong, nil)
	}
	return nil
}
