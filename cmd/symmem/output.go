package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// A command writes a report to standard output: as text or, with --json, as a JSON object. If it
// could not run, it writes the JSON object {"error": "...", "code": 2} instead. So a program that
// passes --json can rely on JSON.

// writeReport writes a report. It calls writeText to write it as text.
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

// output wraps standard output and records whether writes succeed.
type output struct {
	io.Writer
	written bool  // whether any bytes have been written
	err     error // error of the first failed write
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

// Stat describes the output's file. It returns an error if the output is not a file.
func (o *output) Stat() (os.FileInfo, error) {
	file, isFile := o.Writer.(*os.File)
	if !isFile {
		return nil, os.ErrInvalid
	}

	return file.Stat()
}

// wantsJSON reports whether the command must write JSON, even if an argument is invalid.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	jsonFlag, err := cmd.Flags().GetBool("json")
	hasFlag := err == nil
	isChildRank := slices.Contains(args, "--"+childRankFlag) // its parent, this program, writes JSON
	if !hasFlag || isChildRank {
		return false
	}

	if jsonFlag {
		return true
	}

	// The arguments after an invalid one have not been parsed, and may contain --json. Those of
	// launch may belong to the program that it starts.
	return slices.Contains(args, "--json") && cmd.Name() != "launch"
}

// failure is encoded as the JSON output of a command that could not run.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
}

// writeFailure writes the JSON output of a command that could not run. It ignores a failed write,
// because the error is also printed on standard error.
func writeFailure(w io.Writer, code int, err error) {
	text, encodeErr := json.Marshal(failure{Error: err.Error(), Code: code})
	if encodeErr == nil {
		_, _ = w.Write(append(text, '\n'))
	}
}
