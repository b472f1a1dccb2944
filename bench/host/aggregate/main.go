// Command aggregate makes tables from the rows of bench/host/peers.sh. That script launches each
// benchmark several times.
//
//	aggregate rows LABEL < report.json   print a report of "symmem bench collective --json" as rows
//	aggregate table FILE                 print the rows of peers.sh as Markdown tables
//	aggregate results FILE FOLDER        write the tables as result files for docs/measurements
//
// The environment variables MACHINE, LIBRARIES, DATE, COMMIT and COMMAND describe the run in result
// files.
//
// Rows are CSV with the columns label, ranks, operation, bytes, and the median, 10th percentile and
// 90th percentile of the time in microseconds. peers.sh appends two columns: the round-trip time
// between two processors in nanoseconds before and after the launch. Lines that begin with # are
// comments.
package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

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
		launches, err := readLaunches(args[1])
		if err != nil {
			return err
		}

		return printTables(launches, out)
	case len(args) == 3 && args[0] == "results":
		launches, err := readLaunches(args[1])
		if err != nil {
			return err
		}

		folder := args[2]
		return writeResults(launches, folder, runFromEnvironment())
	}

	return errUsage
}

// printRows prints a row for each result of a report. It skips in-place calls, which the benchmarks
// of other libraries do not make.
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

func runFromEnvironment() results.Run {
	return results.Run{
		Machine:   os.Getenv("MACHINE"),
		Libraries: os.Getenv("LIBRARIES"),
		Date:      os.Getenv("DATE"),
		Commit:    os.Getenv("COMMIT"),
		Command:   os.Getenv("COMMAND"),
	}
}

func readLaunches(file string) (*launchResults, error) {
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

// launchResults holds the results of all launches.
type launchResults struct {
	// medians holds the median in microseconds of each launch, by key and label.
	medians      map[rowKey]map[string][]float64
	droppedCount int // rows that add has dropped
}

// rowKey identifies rows that are compared with each other.
type rowKey struct {
	ranks, bytes int
	mode         string // see report.Trips
	operation    string
}

// The columns of a row.
const (
	columnLabel = iota
	columnRanks
	columnOperation
	columnBytes
	columnMedian
	columnP10
	columnP90
	columnTripBefore
	columnTripAfter
	columnCount // number of columns
)

// numericColumns lists the columns that add reads as numbers.
var numericColumns = []int{
	columnRanks, columnBytes, columnMedian, columnTripBefore, columnTripAfter,
}

// readRows reads the rows of peers.sh.
func readRows(in io.Reader) (*launchResults, error) {
	launches := &launchResults{medians: map[rowKey]map[string][]float64{}}
	r := csv.NewReader(in)
	r.Comment = '#'
	r.FieldsPerRecord = columnCount
	for {
		record, err := r.Read()
		if err == io.EOF {
			return launches, nil
		}

		if err != nil {
			return nil, err
		}

		if err := launches.add(record); err != nil {
			line, _ := r.FieldPos(columnLabel)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// add adds a row. It drops the row if the machine was busy, or if the mode changed.
func (l *launchResults) add(record []string) error {
	var numbers [columnCount]float64 // by column
	for _, column := range numericColumns {
		number, err := strconv.ParseFloat(record[column], 64)
		if err != nil {
			return err
		}

		numbers[column] = number
	}

	roundTrips := report.NewTrips(numbers[columnTripBefore], numbers[columnTripAfter])
	if roundTrips.Mode == "mixed" || roundTrips.Mode == "busy" {
		l.droppedCount++
		return nil
	}

	key := rowKey{
		ranks:     int(numbers[columnRanks]),
		bytes:     int(numbers[columnBytes]),
		mode:      roundTrips.Mode,
		operation: record[columnOperation],
	}
	if l.medians[key] == nil {
		l.medians[key] = map[string][]float64{}
	}

	label := record[columnLabel]
	l.medians[key][label] = append(l.medians[key][label], numbers[columnMedian])
	return nil
}
