// Command symmem proves that memory is symmetric across ranks, starts ranks, and measures
// collectives. "symmem --help" lists its commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes a command and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	out := &output{Writer: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && out.err != nil {
		err = fmt.Errorf("writing to standard output: %w", out.err)
	}

	code := reportError(stderr, cmd, err)
	couldNotRun := code == exitFailed && err != nil
	if couldNotRun && !out.written && wantsJSON(cmd, args) {
		writeFailure(stdout, code, err)
	}

	return code
}

// reportError prints an error unless it has already been printed, and returns its exit code.
func reportError(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}

	if exit, ok := errors.AsType[*exitError](err); ok {
		if exit.err != nil {
			fmt.Fprintf(stderr, "symmem: %v\n", exit.err)
		}

		return exit.code
	}

	fmt.Fprintf(stderr, "symmem: %v\n", err)
	isSystemError := errors.As(err, new(syscall.Errno))
	if !isSystemError { // the arguments are wrong
		fmt.Fprintf(stderr, "Run '%s --help' for its arguments.\n", cmd.CommandPath())
	}

	return exitFailed
}
