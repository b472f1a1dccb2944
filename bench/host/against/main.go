// Command against compares the speed of host collectives between two checkouts of symmem.
//
//	go run ./bench/host/against [flags] OLD NEW
//
// OLD and NEW are the folders of the checkouts. A ratio is the old time divided by the new time.
// The exit code is 1 if any ratio is below -bar, and 2 if the measurement fails.
//
// Runs of OLD and NEW alternate, so that other programs on the machine slow down both. The result
// is the median of the ratios of all pairs of runs.
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
)

// config holds the arguments of the command, see parseFlags.
type config struct {
	oldFolder, newFolder string
	pairs                int
	ranks                int
	operations           string
	sizes                string
	batches              int
	minRatio             float64
}

// errSlower means that a ratio is below -bar.
var errSlower = errors.New("the new checkout is slower")

func main() {
	c, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return // parseFlags has printed the usage.
	}

	if err == nil {
		err = c.run(context.Background(), os.Stdout, os.Stderr)
	}

	if err == nil {
		return
	}

	fmt.Fprintf(os.Stderr, "against: %v\n", err)
	if errors.Is(err, errSlower) {
		os.Exit(1)
	}

	os.Exit(2)
}

// parseFlags prints the usage to stderr if the arguments are not valid.
func parseFlags(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	flags := flag.NewFlagSet("against", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.pairs, "pairs", 15, "number of runs of each checkout")
	flags.IntVar(&c.ranks, "ranks", 2, "number of ranks")
	flags.StringVar(&c.operations, "ops", "all_reduce", "collectives, as in bench collective --ops")
	flags.StringVar(&c.sizes, "sizes", "8,65536,1048576", "sizes in bytes")
	flags.IntVar(&c.batches, "batches", 21, "number of batches per result in a run")
	flags.Float64Var(&c.minRatio, "bar", 0,
		"minimum of the old time divided by the new time; 0 permits any")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./bench/host/against [flags] OLD NEW")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	if flags.NArg() != 2 || c.pairs < 1 {
		flags.Usage()
		return nil, errors.New("expected two folders and at least one pair")
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
	var programs [2]string // by checkout: 0 is old, 1 is new
	for checkout, source := range []string{c.oldFolder, c.newFolder} {
		programs[checkout] = filepath.Join(folder, strconv.Itoa(checkout), "symmem")
		if err := buildProgram(ctx, source, programs[checkout]); err != nil {
			return err
		}
	}

	t := newTable()
	for pair := range c.pairs {
		first := pair % 2 // The old and the new checkout start pairs alternately.
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

	slow := t.slowerThan(c.minRatio)
	if len(slow) > 0 {
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

// measure runs the program of a checkout, 0 (old) or 1 (new), and adds the results to t.
func (c *config) measure(ctx context.Context, program string, checkout int, t *table) error {
	r, err := runBench(ctx, program, []string{
		"collective",
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

// runBench runs "symmem bench" and returns its report.
func runBench(ctx context.Context, program string, args []string) (*report.Report, error) {
	benchArgs := append([]string{"bench"}, args...)
	cmd := exec.CommandContext(ctx, program, benchArgs...)
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
