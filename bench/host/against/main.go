// Command against compares the speed of host collectives between two checkouts of symmem.
//
//	go run ./bench/host/against [flags] OLD NEW
//
// OLD and NEW are the folders of the checkouts. Their runs alternate, so that other programs on the
// machine slow down both. Each pair of runs yields a ratio for each benchmark, the old time divided
// by the new time. The exit code is 1 if the median ratio of a benchmark is less than the value of
// -bar, and 2 if the measurement fails.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"symmem/bench/report"
	"symmem/bench/results"
)

// config holds the arguments of the command.
type config struct {
	oldFolder, newFolder  string
	pairs, ranks, batches int
	operations, sizes     string  // lists for bench collective
	minRatio              float64 // flag -bar
}

const oldCheckout, newCheckout = 0, 1 // as indexes

var errSlower = errors.New("the new checkout is slower")

func main() {
	c, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return // parseFlags has printed the usage.
	}

	if err == nil {
		err = c.run(context.Background(), os.Stdout, os.Stderr)
	}

	if err != nil {
		fmt.Fprintf(os.Stderr, "against: %v\n", err)
		if errors.Is(err, errSlower) {
			os.Exit(1)
		}

		os.Exit(2)
	}
}

// parseFlags also prints the usage to stderr if the arguments are not valid.
func parseFlags(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	flags := flag.NewFlagSet("against", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.pairs, "pairs", 15, "number of pairs of runs")
	flags.IntVar(&c.ranks, "ranks", 2, "number of ranks")
	flags.StringVar(&c.operations, "ops", "all_reduce", "collectives, as in bench collective --ops")
	flags.StringVar(&c.sizes, "sizes", "8,65536,1048576", "sizes in bytes")
	flags.IntVar(&c.batches, "batches", 21, "batches per size, as in bench collective --batches")
	flags.Float64Var(&c.minRatio, "bar", 0, "smallest permitted median ratio; 0 permits any")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./bench/host/against [flags] OLD NEW")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	if flags.NArg() != 2 || c.pairs < 1 {
		flags.Usage()
		return nil, errors.New("expected two folders and at least one pair of runs")
	}

	c.oldFolder = flags.Arg(0)
	c.newFolder = flags.Arg(1)
	return c, nil
}

// run builds and measures both checkouts, and writes a table to stdout.
func (c *config) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "against-")
	if err != nil {
		return err
	}

	defer func() {
		removeErr := os.RemoveAll(folder)
		err = errors.Join(err, removeErr)
	}()
	var programs [2]string
	for checkout, source := range []string{oldCheckout: c.oldFolder, newCheckout: c.newFolder} {
		programs[checkout] = filepath.Join(folder, strconv.Itoa(checkout), "symmem")
		if err := buildProgram(ctx, source, programs[checkout]); err != nil {
			return err
		}
	}

	t := newTable()
	for pair := range c.pairs {
		first := pair % 2 // The checkouts take turns in starting a pair.
		second := 1 - first
		for _, checkout := range []int{first, second} {
			if err := c.measure(ctx, programs[checkout], checkout, t); err != nil {
				return err
			}
		}

		fmt.Fprintf(stderr, "%d of %d pairs\n", pair+1, c.pairs)
	}

	if err := t.write(stdout); err != nil {
		return err
	}

	if slow := t.slowerThan(c.minRatio); len(slow) > 0 {
		return fmt.Errorf("%w: %v", errSlower, slow)
	}

	return nil
}

// buildProgram builds the symmem command of the checkout in the folder source.
func buildProgram(ctx context.Context, source, program string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/symmem")
	cmd.Dir = source
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", source, err, output)
	}

	return nil
}

// measure runs the program of a checkout, and adds the results to t.
func (c *config) measure(ctx context.Context, program string, checkout int, t *table) error {
	r, err := runBench(ctx, program, []string{
		"bench", "collective",
		"--ranks", strconv.Itoa(c.ranks),
		"--ops", c.operations,
		"--sizes", c.sizes,
		"--in-place=false",
		"--check", "every",
		"--batches", strconv.Itoa(c.batches),
		"--backend", "host",
		"--json",
	})
	if err != nil {
		return err
	}

	for i := range r.Results {
		t.add(checkout, &r.Results[i])
	}

	return nil
}

// runBench runs a program that prints a report, and returns the report.
func runBench(ctx context.Context, program string, args []string) (*report.Report, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, &stderr)
	}

	r := &report.Report{}
	if err := json.Unmarshal(stdout.Bytes(), r); err != nil {
		return nil, fmt.Errorf("%v: decoding the report: %w", cmd.Args, err)
	}

	return r, nil
}

// table holds the times of both checkouts.
type table struct {
	names  []string // of benchmarks, such as "all_reduce, 8 bytes", in order of appearance
	byName map[string]*benchmarkRuns
}

// benchmarkRuns holds the times of one benchmark in nanoseconds, by checkout and run.
type benchmarkRuns [2][]float64

func newTable() *table { return &table{byName: map[string]*benchmarkRuns{}} }

// add adds the result of one benchmark in a run of a checkout.
func (t *table) add(checkout int, r *report.Result) {
	name := fmt.Sprintf("%s, %v bytes", r.Name, r.Params["bytes"])
	if t.byName[name] == nil {
		t.byName[name] = &benchmarkRuns{}
		t.names = append(t.names, name)
	}

	t.byName[name][checkout] = append(t.byName[name][checkout], r.Median)
}

// ratios returns the ratio of each pair of runs. It ignores pairs with a new time of 0.
func (b *benchmarkRuns) ratios() (ratios []float64) {
	oldTimes, newTimes := b[oldCheckout], b[newCheckout]
	for i := range min(len(oldTimes), len(newTimes)) {
		if newTimes[i] > 0 {
			ratios = append(ratios, oldTimes[i]/newTimes[i])
		}
	}

	return ratios
}

// write formats the table as Markdown.
func (t *table) write(out io.Writer) error {
	formatted := results.Table{Columns: []string{
		"figure", "old, ns", "new, ns", "old over new", "10th to 90th percentile", "pairs",
	}}
	for _, name := range t.names {
		runs := t.byName[name]
		oldTime := report.Summarize(runs[oldCheckout]).Median
		newTime := report.Summarize(runs[newCheckout]).Median
		ratios := runs.ratios()
		ratio := report.Summarize(ratios)
		formatted.Rows = append(formatted.Rows, []any{
			name,
			fmt.Sprintf("%.1f", oldTime),
			fmt.Sprintf("%.1f", newTime),
			fmt.Sprintf("%.3f", ratio.Median),
			fmt.Sprintf("%.3f to %.3f", ratio.P10, ratio.P90),
			float64(len(ratios)),
		})
	}

	text, err := formatted.Markdown()
	if err != nil {
		return err
	}

	_, err = io.WriteString(out, text)
	return err
}

// slowerThan describes the benchmarks whose median ratio is below minRatio.
func (t *table) slowerThan(minRatio float64) (slowBenchmarks []string) {
	for _, name := range t.names {
		ratio := report.Summarize(t.byName[name].ratios()).Median
		if ratio < minRatio {
			slowBenchmarks = append(slowBenchmarks, fmt.Sprintf("%s: %.3f", name, ratio))
		}
	}

	return slowBenchmarks
}
