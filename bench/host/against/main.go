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

type config struct {
	oldFolder, newFolder string
	pairs                int
	ranks                int
	operations           string
	sizes                string
	batches              int
	minRatio             float64
}

var errSlower = errors.New("the new checkout is slower")

func main() {
	c, err := parseFlags(os.Args[1:], os.Stderr)
	if err == nil {
		err = c.run(context.Background(), os.Stdout, os.Stderr)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errSlower):
		fmt.Fprintf(os.Stderr, "against: %v\n", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "against: %v\n", err)
		os.Exit(2)
	}
}

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
	c.oldFolder, c.newFolder = flags.Arg(0), flags.Arg(1)
	return c, nil
}

func (c *config) run(ctx context.Context, stdout, stderr io.Writer) (err error) {
	folder, err := os.MkdirTemp("", "against-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	var programs [2]string
	for i, source := range []string{c.oldFolder, c.newFolder} {
		programs[i] = filepath.Join(folder, strconv.Itoa(i), "symmem")
		if err := buildProgram(ctx, source, programs[i]); err != nil {
			return err
		}
	}
	t := newTable()
	for pair := range c.pairs {
		for _, i := range [2]int{pair % 2, 1 - pair%2} {
			if err := c.measure(ctx, programs[i], i, t); err != nil {
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

func buildProgram(ctx context.Context, source, program string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/symmem")
	cmd.Dir = source
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", source, err, output)
	}
	return nil
}

func (c *config) measure(ctx context.Context, program string, index int, t *table) error {
	r, err := runBench(ctx, program, []string{
		"collective", "--ranks", strconv.Itoa(c.ranks), "--ops", c.operations, "--sizes", c.sizes,
		"--in-place=false", "--check", "every", "--batches", strconv.Itoa(c.batches),
		"--backend", "host", "--json",
	})
	if err != nil {
		return err
	}
	for i := range r.Results {
		t.add(index, &r.Results[i])
	}
	return nil
}

func runBench(ctx context.Context, program string, args []string) (*report.Report, error) {
	cmd := exec.CommandContext(ctx, program, append([]string{"bench"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, &stderr)
	}
	r := &report.Report{}
	if err := json.Unmarshal(stdout.Bytes(), r); err != nil {
		return nil, fmt.Errorf("%v: decoding the report: %w", cmd.Args, err)
	}
	return r, nil
}
