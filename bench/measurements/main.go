// Command measurements generates the tables of docs/measurements from the result files there.
//
//	measurements                    regenerate the tables of all pages
//	measurements --check            fail if a page and its result files differ
//	measurements add NAME [FLAGS]   write results/NAME.json from the output of "symmem bench
//	                                --json" or "go test -bench" on standard input
//
// To add a table to a page, write the two comments that enclose it, and run the command:
//
//	<!-- results/NAME.json -->
//	<!-- end -->
//
// Package results defines the format of result files. bench/host/peers.sh, and bench/gpu/torch.sh
// with RESULTS=DIR, write result files themselves.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"symmem/bench/results"
)

func main() {
	if err := run(os.Args[1:], os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "measurements: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader) error {
	flags := flag.NewFlagSet("measurements", flag.ContinueOnError)
	folder := flags.String("folder", filepath.Join("docs", "measurements"), "folder of the pages")
	check := flags.Bool("check", false, "fail if a page is not up to date; write nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}

	if flags.NArg() == 0 {
		if *check {
			return checkPages(*folder)
		}

		return writePages(*folder)
	}

	isAdd := flags.NArg() >= 2 && flags.Arg(0) == "add"
	if isAdd && !*check {
		name := flags.Arg(1)
		addFlags := flags.Args()[2:]
		return addResult(*folder, name, addFlags, in)
	}

	return errors.New("usage: measurements [--folder DIR] [--check | add NAME [FLAGS]]")
}

// addResult writes results/NAME.json from the output of a benchmark. args describe the run.
func addResult(folder, name string, args []string, in io.Reader) error {
	var origin results.Run
	flags := flag.NewFlagSet("measurements add", flag.ContinueOnError)
	flags.StringVar(&origin.Machine, "machine", "", "the machine, its GPUs and driver (required)")
	flags.StringVar(&origin.Date, "date", "", "the day of the run, such as 2026-11-20 (required)")
	flags.StringVar(&origin.Commit, "commit", "", "the commit that was built")
	flags.StringVar(&origin.Command, "command", "", "the command that was run")
	flags.StringVar(&origin.Libraries, "libraries", "", "versions of NCCL, PyTorch, Go and others")
	if err := flags.Parse(args); err != nil {
		return err
	}

	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}

	r, err := parseOutput(text)
	if err != nil {
		return err
	}

	r.Runs = []results.Run{origin}
	encoded, err := r.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}

	return os.WriteFile(filepath.Join(folder, "results", name+".json"), encoded, 0o644)
}
