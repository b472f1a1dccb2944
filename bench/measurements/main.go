// Command measurements writes the tables of docs/measurements from the result files there.
//
//	measurements                    writes the tables of all pages anew
//	measurements --check            fails where a page and its result files disagree
//	measurements add NAME [FLAGS]   makes results/NAME.json of standard input: what "symmem bench
//	                                --json" or "go test -bench" has printed
//
// A page names the result file of a table in two comments, between which the table is generated. To
// show a new result, write these two lines where it belongs and run the command:
//
//	<!-- results/NAME.json -->
//	<!-- end -->
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
	folder := flags.String("folder", filepath.Join("docs", "measurements"), "where the pages are")
	check := flags.Bool("check", false, "write nothing; fail where a page is not as generated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() == 0 && *check:
		return compare(*folder)
	case flags.NArg() == 0:
		return write(*folder)
	case flags.Arg(0) == "add" && flags.NArg() >= 2 && !*check:
		return add(*folder, flags.Arg(1), flags.Args()[2:], in)
	}
	return errors.New("usage: measurements [--folder DIR] [--check | add NAME [FLAGS]]")
}

// add makes a result file of what a benchmark has printed.
func add(folder, name string, args []string, in io.Reader) error {
	var about results.Run
	flags := flag.NewFlagSet("measurements add", flag.ContinueOnError)
	flags.StringVar(&about.Machine, "machine", "", "the machine, its GPUs and driver (required)")
	flags.StringVar(&about.Date, "date", "", "the day of the run, as 2026-11-20 (required)")
	flags.StringVar(&about.Commit, "commit", "", "the commit that was built")
	flags.StringVar(&about.Command, "command", "", "the command that was run")
	flags.StringVar(&about.Libraries, "libraries", "", "versions of NCCL, PyTorch, Go and others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("reading what was printed: %w", err)
	}
	r, err := parse(text)
	if err != nil {
		return err
	}
	r.Runs = []results.Run{about}
	encoded, err := r.Encode()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(filepath.Join(folder, "results", name+".json"), encoded, 0o644)
}
