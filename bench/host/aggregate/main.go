// Command aggregate turns the rows of bench/host/peers.sh into tables.
//
//	aggregate rows LABEL < report.json   rows of a report of "symmem bench collective --json"
//	aggregate table FILE                 a Markdown table of all rows of a file
//
// A row is label, ranks, operation, bytes, median, 10th and 90th percentile in microseconds; in the
// file two columns follow, the round trip between two processors in nanoseconds before and after
// the launch. Lines that begin with # are remarks.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"symmem/internal/bench"
)

var errUsage = errors.New("usage: aggregate rows LABEL < REPORT | aggregate table FILE")

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "aggregate: %v\n", err)
		os.Exit(2)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errUsage
	}
	switch args[0] {
	case "rows":
		return rows(args[1], in, out)
	case "table":
		f, err := os.Open(args[1])
		if err != nil {
			return err
		}
		defer f.Close()
		all, err := read(f)
		if err != nil {
			return fmt.Errorf("reading %s: %w", args[1], err)
		}
		return table(all, out)
	default:
		return errUsage
	}
}

// rows writes a report as rows.
func rows(label string, in io.Reader, out io.Writer) error {
	var report bench.Report
	if err := json.NewDecoder(in).Decode(&report); err != nil {
		return fmt.Errorf("decoding a report: %w", err)
	}
	for _, r := range report.Results {
		if r.Params["in_place"] == true {
			continue
		}
		_, err := fmt.Fprintf(out, "%s,%v,%s,%.0f,%.4f,%.4f,%.4f\n", label, r.Params["ranks"],
			r.Name, r.Params["bytes"], r.Median/1e3, r.P10/1e3, r.P90/1e3)
		if err != nil {
			return fmt.Errorf("writing rows: %w", err)
		}
	}
	return nil
}
