package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// writeReport writes a report as JSON, or as text with writeText.
func writeReport(w io.Writer, asJSON bool, report any, writeText func(io.Writer) error) error {
	if asJSON {
		return writeJSON(w, report)
	}

	if err := writeText(w); err != nil {
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

// output wraps standard output and remembers whether writes succeeded.
type output struct {
	io.Writer
	written bool  // whether anything has been written
	err     error // the error of the first failed write
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	o.written = o.written || n > 0
	if o.err == nil {
		o.err = err
	}

	return n, err
}

// Stat returns an error if the output is not a file.
func (o *output) Stat() (os.FileInfo, error) {
	file, isFile := o.Writer.(*os.File)
	if !isFile {
		return nil, os.ErrInvalid
	}

	return file.Stat()
}

// wantsJSON reports whether a failed command prints its error as JSON. The command may have failed
// because args are invalid.
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

	if cmd.Name() == "launch" {
		return false // --json in args may belong to the launched program
	}

	// An invalid argument may have stopped the parser before --json.
	return slices.Contains(args, "--json")
}

// failure replaces the report of a command that failed, so that --json always prints JSON.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
}

// writeFailure ignores failed writes, because the error is also printed on standard error.
func writeFailure(w io.Writer, code int, err error) {
	text, encodeErr := json.Marshal(failure{Error: err.Error(), Code: code})
	if encodeErr == nil {
		_, _ = w.Write(append(text, '\n'))
	}
}
