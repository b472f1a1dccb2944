// Command symmem proves that memory is symmetric across ranks, starts ranks, and measures
// collectives. "symmem --help" lists what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the command without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return report(stderr, cmd, err)
}

// report prints an error that was not printed where it arose, and returns its exit code.
func report(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			fmt.Fprintf(stderr, "symmem: %v\n", exit.err)
		}
		return exit.code
	}
	fmt.Fprintf(stderr, "symmem: %v\nRun '%s --help' for what it takes.\n", err, cmd.CommandPath())
	return exitUsage
}
