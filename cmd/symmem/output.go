package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// writeReport writes a report as JSON, or calls text to write it as text.
func writeReport(w io.Writer, asJSON bool, report any, text func(io.Writer) error) error {
	if asJSON {
		return writeJSON(w, report)
	}

	if err := text(w); err != nil {
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
	written bool  // whether a write has succeeded
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
	if f, ok := o.Writer.(*os.File); ok {
		return f.Stat()
	}

	return nil, os.ErrInvalid
}

// wantsJSON reports whether the arguments request JSON, even if another argument is invalid. It
// returns false in ranks that this program has started, because their parent writes the JSON.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	jsonFlag, err := cmd.Flags().GetBool("json")
	if err != nil || slices.Contains(args, "--"+childRankFlag) {
		return false
	}

	if jsonFlag {
		return true
	}

	// The flag is not set if an earlier argument is invalid. An argument of launch can belong to the
	// program that it starts.
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
