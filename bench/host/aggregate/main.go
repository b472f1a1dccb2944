// Command aggregate makes tables from the benchmark results of bench/host/peers.sh, one CSV row per
// result and launch.
//
//	aggregate rows LABEL < report.json   print a report of "symmem bench collective --json" as rows
//	aggregate table FILE                 print all rows of a file as Markdown tables
//	aggregate results FILE FOLDER        write the tables as result files for docs/measurements
//
// The environment variables MACHINE, LIBRARIES, DATE, COMMIT and COMMAND describe the run in result
// files.
//
// The columns are label, ranks, operation, bytes, and median, 10th and 90th percentile of the time
// in microseconds. FILE has two more columns, the round-trip time between two processors before and
// after the run in nanoseconds. Lines that begin with # are comments.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"symmem/bench/report"
	"symmem/bench/results"
)

var errUsage = errors.New(
	"usage: aggregate rows LABEL < REPORT | aggregate table FILE | aggregate results FILE FOLDER")

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "aggregate: %v\n", err)
		os.Exit(2)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "rows":
		label := args[1]
		return printRows(label, in, out)
	case len(args) == 2 && args[0] == "table":
		launches, err := readFile(args[1])
		if err != nil {
			return err
		}

		return printTables(launches, out)
	case len(args) == 3 && args[0] == "results":
		launches, err := readFile(args[1])
		if err != nil {
			return err
		}

		folder := args[2]
		return writeResults(launches, folder, originFromEnvironment())
	}

	return errUsage
}

func originFromEnvironment() results.Run {
	return results.Run{
		Machine:   os.Getenv("MACHINE"),
		Libraries: os.Getenv("LIBRARIES"),
		Date:      os.Getenv("DATE"),
		Commit:    os.Getenv("COMMIT"),
		Command:   os.Getenv("COMMAND"),
	}
}

func readFile(file string) (*launchResults, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	launches, err := readRows(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}

	return launches, nil
}

// printRows prints a row for each result of a report. It skips in-place calls, which other
// libraries do not measure.
func printRows(label string, in io.Reader, out io.Writer) error {
	var decoded report.Report
	if err := json.NewDecoder(in).Decode(&decoded); err != nil {
		return fmt.Errorf("decoding a report: %w", err)
	}

	const nsPerMicrosecond = 1e3
	for _, r := range decoded.Results {
		if r.Params["in_place"] == true {
			continue
		}

		median := r.Median / nsPerMicrosecond
		p10 := r.P10 / nsPerMicrosecond
		p90 := r.P90 / nsPerMicrosecond
		_, err := fmt.Fprintf(out, "%s,%v,%s,%.0f,%.4f,%.4f,%.4f\n",
			label, r.Params["ranks"], r.Name, r.Params["bytes"], median, p10, p90)
		if err != nil {
			return fmt.Errorf("writing rows: %w", err)
		}
	}

	return nil
}
