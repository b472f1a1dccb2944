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

// parseCases completes and validates the configuration of cases.
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

// choosePath chooses the default path, unless --path is set.
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
		c.Path = symmem.PathAuto // the default, NCCL's window path, does not support formulas
	}

	return nil
}

// runCases runs the cases on this rank, and prints the report on rank 0. Each rank prints its own
// errors, so the returned error carries only the exit code.
func (f *verifyFlags) runCases(
	ctx context.Context, w rendezvous.World, stdout, stderr io.Writer,
) (err error) {
	prefix := fmt.Sprintf("[rank %d] ", w.Rank)
	fail := func(err error) error {
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitFailed, nil)
	}
	if err := f.prover.Start(); err != nil {
		return fail(err)
	}

	defer func() {
		var closeErr error
		f.prover.Close(&closeErr)
		if closeErr == nil {
			return
		}

		exitErr := fail(closeErr)
		if err == nil {
			err = exitErr
		}
	}()
	rt, err := symmem.Open(ctx, f.caseConfig.Options())
	if err != nil {
		return fail(err)
	}

	report, runErr := verify.Run(ctx, rt, f.caseConfig, newProgress(w.Rank, stderr))
	if report == nil {
		closeErr := rt.Close()
		return fail(errors.Join(runErr, closeErr))
	}

	var reportErr, kernelsErr error
	if w.Rank == 0 {
		reportErr = writeReport(stdout, f.json, report, report.WriteText)
		kernelsErr = f.writeKernels(stdout, report)
	}

	closeErr := rt.Close()
	hasFault := report.Divergence != nil || report.Fault != ""
	if hasFault {
		closeErr = nil // the error of Close only repeats the fault
	}

	allErrs := errors.Join(runErr, reportErr, kernelsErr, closeErr)
	return finishCases(stderr, prefix, report, allErrs)
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

// newProgress returns a function that shows progress, or nil to show none.
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

// finishCases prints this rank's error after prefix, such as "[rank 1] ", and returns an error that
// carries the exit code.
func finishCases(stderr io.Writer, prefix string, r *verify.Report, err error) error {
	switch {
	case r.Divergence != nil: // memory events differ between ranks
		fmt.Fprintf(stderr, "%sdivergence: %s\n", prefix, r.Divergence.Message)
		return exitWith(exitWrong, nil)
	case r.Fault != "": // the run could not finish
		faultPrefix := strings.Trim(prefix, "[] ") + ": " // such as "rank 1: ", redundant here
		fault := strings.TrimPrefix(r.Fault, faultPrefix)
		fmt.Fprintf(stderr, "%s%s\n", prefix, fault)
		return exitWith(exitFailed, nil)
	case err != nil:
		fmt.Fprintf(stderr, "%s%v\n", prefix, err)
		return exitWith(exitFailed, nil)
	case !r.OK(): // the report contains the wrong sums
		return exitWith(exitWrong, nil)
	}

	return nil
}
