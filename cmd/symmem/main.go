// Command symmem proves that memory is symmetric across ranks, starts ranks, and measures
// collectives. "symmem --help" lists its commands.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
	if code == exitIncomplete && !out.hasBytes && wantsJSON(cmd, args) {
		writeFailure(stdout, code, err)
	}

	return code
}

// output wraps standard output.
type output struct {
	io.Writer
	hasBytes bool  // whether anything has been written
	err      error // of the first failed write
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	o.hasBytes = o.hasBytes || n > 0
	if o.err == nil {
		o.err = err
	}

	return n, err
}

// Stat lets launch.Run check whether standard output and standard error are the same file.
func (o *output) Stat() (os.FileInfo, error) {
	file, isFile := o.Writer.(*os.File)
	if !isFile {
		return nil, os.ErrInvalid
	}

	return file.Stat()
}

// reportError prints err unless it has already been printed (see exitError), and returns the exit
// code.
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
	areArgumentsWrong := !errors.As(err, new(syscall.Errno))
	if areArgumentsWrong {
		fmt.Fprintf(stderr, "Run '%s --help' for its arguments.\n", cmd.CommandPath())
	}

	return exitIncomplete
}

// wantsJSON reports whether a failed command prints its error as JSON.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	isJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return false // the command has no such flag
	}

	isChildRank := slices.Contains(args, "--"+childRankFlag)
	if isChildRank {
		return false // its parent prints JSON
	}

	if isJSON {
		return true
	}

	// The parser stops at an invalid argument, which may precede --json. In the arguments of launch,
	// --json may belong to the launched program.
	return cmd.Name() != "launch" && slices.Contains(args, "--json")
}

// failure replaces the report of a command that failed, so that --json always prints JSON.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
}

// writeFailure ignores failed writes, because err is also printed on standard error.
func writeFailure(w io.Writer, code int, err error) {
	text, encodeErr := json.Marshal(failure{Error: err.Error(), Code: code})
	if encodeErr == nil {
		_, _ = w.Write(append(text, '\n'))
	}
}

// Exit codes of the commands. launch exits with the code of its program. A command that is killed
// by signal n exits with 128+n, as in shells.
const (
	exitOK         = 0
	exitBadResult  = 1 // ranks computed a wrong result or diverged
	exitIncomplete = 2 // the command could not run or could not finish
)

// exitError makes the command exit with a code. If err is nil, the error has already been printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}

	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith returns an error that makes the command exit with code, or nil if code is exitOK and err
// is nil.
func exitWith(code int, err error) error {
	if code == exitOK && err == nil {
		return nil
	}

	return &exitError{code: code, err: err}
}

type textReport interface{ WriteText(io.Writer) error }

// writeReport writes a report as JSON or text.
func writeReport(w io.Writer, asJSON bool, report textReport) error {
	if asJSON {
		return writeJSON(w, report)
	}

	if err := report.WriteText(w); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}

	return nil
}

func writeJSON(w io.Writer, report any) error {
	if err := json.NewEncoder(w).Encode(report); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}

	return nil
}
