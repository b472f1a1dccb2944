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

// A case of verify is a buffer that the ranks all-reduce, to check the sums. All ranks run the same
// cases. At the end, rank 0 prints the report about all ranks. Each rank prints its own error. It
// exits with code 1 if a sum was wrong or ranks differ, or 2 if it could not finish.

// parseCases completes and checks the configuration of cases.
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

// pathVariable is the environment variable that sets the default of Options.Path.
const pathVariable = "SYMMEM_PATH"

// choosePath sets the path (the way to execute the sums) unless --path has set it. SYMMEM_PATH has
// precedence over the default.
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
		c.Path = symmem.PathAuto // NCCL's window path, the default, does not use the formula
	}

	return nil
}

// runCases runs the cases on this rank. It prints this rank's errors, so the returned error has
// only the exit code.
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

	defer func() {
		var closeErr error
		f.prover.Close(&closeErr)
		if closeErr == nil {
			return
		}

		exitErr := printError(closeErr)
		if err == nil { // otherwise, the exit code is that of the first error
			err = exitErr
		}
	}()
	rt, err := symmem.Open(ctx, f.caseConfig.Options())
	if err != nil {
		return printError(err)
	}

	report, runErr := verify.Run(ctx, rt, f.caseConfig, newProgress(w.Rank, stderr))
	if report == nil {
		closeErr := rt.Close()
		return printError(errors.Join(runErr, closeErr))
	}

	var reportErr, kernelsErr error
	if w.Rank == 0 {
		reportErr = writeReport(stdout, f.json, report, report.WriteText)
		kernelsErr = f.writeKernels(stdout, report)
	}

	closeErr := rt.Close()
	hasFault := report.Divergence != nil || report.Fault != ""
	if hasFault {
		closeErr = nil // it only repeats the fault
	}

	allErrs := errors.Join(runErr, reportErr, kernelsErr, closeErr)
	return finishCases(stderr, prefix, report, allErrs)
}

// writeKernels writes which kernels of NCCL ran, if --prove is set. With --json, it writes nothing.
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

// newProgress returns a function that shows the progress of a run, or nil if this rank shows none.
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

// finishCases prints this rank's error and returns an error with the exit code. prefix names the
// rank, such as "[rank 1] ".
func finishCases(stderr io.Writer, prefix string, r *verify.Report, err error) error {
	switch {
	case r.Divergence != nil: // the events of ranks differ
		fmt.Fprintf(stderr, "%sdivergence: %s\n", prefix, r.Divergence.Message)
		return exitWith(exitWrong, nil)
	case r.Fault != "": // the run could not finish
		rankName := strings.Trim(prefix, "[] ") + ": " // such as "rank 1: "
		fault := strings.TrimPrefix(r.Fault, rankName) // prefix already names the rank
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
