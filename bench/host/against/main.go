// Command against compares the speed of collectives on the host between two checkouts of symmem. It
// builds the command of each checkout and runs the two in turns, so that other programs on the
// machine slow down both.
//
//	go run ./bench/host/against [flags] OLD NEW
//
// OLD and NEW are the folders of the checkouts. Ratios are old time divided by new time. The exit
// code is 1 if any ratio is below -bar, and 2 if the measurement fails.
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

// Other programs can slow down the machine. If they began between all runs of OLD and all runs of
// NEW, then NEW would look slow. Instead, OLD and NEW run in pairs: one run of each, immediately
// after each other. Each pair yields a ratio. The result is the median of the ratios, so a few
// disturbed pairs do not change it.

// config holds the arguments of the command. parseFlags describes its fields.
type config struct {
	oldFolder, newFolder string
	pairs                int
	ranks                int
	operations           string
	sizes                string
	batches              int
	minRatio             float64
}

// errSlower means that a ratio is below minRatio.
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

// parseFlags parses the arguments of the command. It prints the usage if they are not valid.
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

// run builds both checkouts, measures them in turns and writes a table to stdout. It returns
// errSlower if a ratio is below c.minRatio.
func (c *config) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "against-")
	if err != nil {
		return err
	}

	defer func() {
		removeErr := os.RemoveAll(folder)
		err = errors.Join(err, removeErr)
	}()
	var programs [2]string // of the old and the new checkout
	for i, source := range []string{c.oldFolder, c.newFolder} {
		programs[i] = filepath.Join(folder, strconv.Itoa(i), "symmem")
		if err := buildProgram(ctx, source, programs[i]); err != nil {
			return err
		}
	}

	t := newTable()
	for pair := range c.pairs {
		// The checkouts take turns in being the first of a pair.
		first := pair % 2
		second := 1 - first
		if err := c.measure(ctx, programs[first], first, t); err != nil {
			return err
		}

		if err := c.measure(ctx, programs[second], second, t); err != nil {
			return err
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

// buildProgram builds the command of the checkout in the folder source.
func buildProgram(ctx context.Context, source, program string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/symmem")
	cmd.Dir = source
	output, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", source, err, output)
	}

	return nil
}

// measure runs a program and adds its results to t. index is 0 for the old checkout, and 1 for the
// new one.
func (c *config) measure(ctx context.Context, program string, index int, t *table) error {
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
		t.add(index, &r.Results[i])
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
