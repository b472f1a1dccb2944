package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// writeReport writes a report for machines or, as text, for people.
func writeReport(w io.Writer, asJSON bool, report any, text func(io.Writer) error) error {
	if asJSON {
		return writeJSON(w, report)
	}
	if err := text(w); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// writeJSON writes a report for machines, as one object on a line.
func writeJSON(w io.Writer, report any) error {
	if err := json.NewEncoder(w).Encode(report); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// output is standard output, with what has become of it.
type output struct {
	io.Writer
	written bool  // something was written
	err     error // the first failure
}

// Write writes.
func (o *output) Write(b []byte) (int, error) {
	n, err := o.Writer.Write(b)
	o.written = o.written || n > 0
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// Stat describes the file, if it is one.
func (o *output) Stat() (os.FileInfo, error) {
	if f, ok := o.Writer.(*os.File); ok {
		return f.Stat()
	}
	return nil, os.ErrInvalid
}

// wantsJSON reports whether the arguments ask for a JSON object, also behind one that is wrong, but
// for launch, whose last arguments are another program's. A rank that this program has started
// leaves it to who has started it.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	asked, err := cmd.Flags().GetBool("json")
	if err != nil || slices.Contains(args, "--"+startedFlag) {
		return false
	}
	return asked || slices.Contains(args, "--json") && cmd.Name() != "launch"
}

// failure is the object of a command that could not run.
type failure struct {
	Error string `json:"error"`
	Code  int    `json:"code"`
}

// writeFailure writes the object in place of the one that the command would have written.
func writeFailure(w io.Writer, code int, err error) {
	// The error stands on standard error as well, where nothing can be written here.
	if text, encodeErr := json.Marshal(failure{err.Error(), code}); encodeErr == nil {
		_, _ = w.Write(append(text, '\n'))
	}
}
