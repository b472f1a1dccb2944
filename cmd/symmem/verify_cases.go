package main

import (
	"cmp"
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

// parseCases completes and validates caseConfig.
func (f *verifyFlags) parseCases(flags *pflag.FlagSet) error {
	c := &f.caseConfig
	c.Elements = int64(f.caseSize)
	c.Rounds = f.rounds
	c.Skew = f.isSkewed
	if err := f.choosePath(flags); err != nil {
		return err
	}

	return c.Validate()
}

// pathVariable names the environment variable that replaces the default of --path.
const pathVariable = "SYMMEM_PATH"

// choosePath sets the path to its default, unless --path is set.
func (f *verifyFlags) choosePath(flags *pflag.FlagSet) error {
	if flags.Changed("path") {
		return nil
	}

	c := &f.caseConfig
	pathFromEnv := os.Getenv(pathVariable)
	switch {
	case pathFromEnv != "":
		path, err := symmem.ParsePathChoice(pathFromEnv)
		if err != nil {
			return fmt.Errorf("%s: %w", pathVariable, err)
		}

		c.Path = path
	case flags.Changed("deterministic"):
		c.Path = symmem.PathAuto // the window path does not support --deterministic
	}

	return nil
}

// runCases runs the cases on this rank, and prints the report on rank 0. Each rank prints its own
// errors, so the returned error carries only the exit code.
func (f *verifyFlags) runCases(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) error {
	if err := f.prover.Start(); err != nil {
		return printFailure(stderr, w.Rank, err)
	}

	exitErr := f.runOnRuntime(ctx, w, stdout, stderr)
	var closeErr error
	f.prover.Close(&closeErr)
	if closeErr != nil {
		failure := printFailure(stderr, w.Rank, closeErr)
		return cmp.Or(exitErr, failure)
	}

	return exitErr
}

// runOnRuntime opens a Runtime for the cases and closes it afterwards.
func (f *verifyFlags) runOnRuntime(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) error {
	rt, err := symmem.Open(ctx, f.caseConfig.Options())
	if err != nil {
		return printFailure(stderr, w.Rank, err)
	}

	report, runErr := verify.Run(ctx, rt, f.caseConfig, newProgress(w.Rank, stderr))
	if report == nil {
		closeErr := rt.Close()
		return printFailure(stderr, w.Rank, errors.Join(runErr, closeErr))
	}

	var reportErr, kernelsErr error
	if w.Rank == 0 {
		reportErr = writeReport(stdout, f.json, report)
		kernelsErr = f.writeKernels(stdout, report)
	}

	closeErr := rt.Close()
	allErrs := errors.Join(runErr, reportErr, kernelsErr, closeErr)
	return finishCases(stderr, w.Rank, report, allErrs)
}

// newProgress returns a function that shows progress, or nil to show none.
func newProgress(rank int, stderr io.Writer) func(done, all int) {
	switch {
	case rank != 0:
		return nil
	case os.Getenv(progressVariable) == "lines":
		return newProgressLines(stderr, "steps")
	case isTerminal(stderr):
		return newProgressLines(&progressCounter{terminal: stderr}, "steps")
	}

	return nil
}

// writeKernels writes which NCCL kernels ran. It writes nothing without --prove or with --json.
func (f *verifyFlags) writeKernels(w io.Writer, r *verify.Report) error {
	if f.json {
		return nil
	}

	for i := range r.Cases {
		f.prover.AddCall("AllReduce", r.Cases[i].Size, elementBytes)
	}

	const linePrefix = ""
	return f.prover.Write(w, linePrefix)
}

// finishCases prints a divergence, or else a fault, or else err. It returns an error that carries
// the exit code.
func finishCases(stderr io.Writer, rank int, r *verify.Report, err error) error {
	switch {
	case r.Divergence != nil: // memory events differ between ranks
		fmt.Fprintf(stderr, "[rank %d] divergence: %s\n", rank, r.Divergence.Message)
		return exitWith(exitBadResult, nil)
	case r.Fault != "": // the run could not finish
		fault := strings.TrimPrefix(r.Fault, fmt.Sprintf("rank %d: ", rank))
		fmt.Fprintf(stderr, "[rank %d] %s\n", rank, fault)
		return exitWith(exitIncomplete, nil)
	case err != nil:
		return printFailure(stderr, rank, err)
	case !r.OK(): // the report contains the wrong sums
		return exitWith(exitBadResult, nil)
	}

	return nil
}

// printFailure prints why a rank could not finish, and returns an error with the exit code.
func printFailure(stderr io.Writer, rank int, err error) error {
	fmt.Fprintf(stderr, "[rank %d] %v\n", rank, err)
	return exitWith(exitIncomplete, nil)
}
