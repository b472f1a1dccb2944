// Command measurements generates the tables of docs/measurements from the result files there.
//
//	measurements                        update the tables of all pages
//	measurements --check                fail if a page and its result files differ
//	measurements add NAME [FLAGS] < F   convert F, the output of "symmem bench --json" or "go test
//	                                    -bench", to the result file results/NAME.json
//
// To add a table to a page, write these two comments, and update the tables:
//
//	<!-- results/NAME.json -->
//	<!-- end -->
//
// bench/host/peers.sh and bench/gpu/torch.sh (with RESULTS=DIR) also write result files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

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
		name, runFlags := flags.Arg(1), flags.Args()[2:]
		return addResult(*folder, name, runFlags, in)
	}

	return errors.New("usage: measurements [--folder DIR] [--check | add NAME [FLAGS]]")
}

// addResult writes results/NAME.json from the output of a benchmark. runFlags describe the run.
func addResult(folder, name string, runFlags []string, in io.Reader) error {
	var benchRun results.Run
	flags := flag.NewFlagSet("measurements add", flag.ContinueOnError)
	flags.StringVar(&benchRun.Machine, "machine", "", "the machine, its GPUs and driver (required)")
	flags.StringVar(&benchRun.Date, "date", "", "the day of the run, such as 2026-11-20 (required)")
	flags.StringVar(&benchRun.Commit, "commit", "", "the commit that was built")
	flags.StringVar(&benchRun.Command, "command", "", "the command that was run")
	flags.StringVar(&benchRun.Libraries, "libraries", "", "versions of NCCL, PyTorch, Go and others")
	if err := flags.Parse(runFlags); err != nil {
		return err
	}

	text, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}

	table, err := parseOutput(text)
	if err != nil {
		return err
	}

	table.Runs = []results.Run{benchRun}
	encoded, err := table.Encode() // rejects a missing machine or date
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}

	return os.WriteFile(filepath.Join(folder, "results", name+".json"), encoded, 0o644)
}

// page is a page of docs/measurements.
type page struct {
	file             string
	oldText, newText string // newText has the updated tables
}

// writePages updates the tables of all pages.
func writePages(folder string) error {
	pages, err := readPages(folder)
	if err != nil {
		return err
	}

	var errs []error
	for _, p := range pages {
		if p.newText != p.oldText {
			errs = append(errs, os.WriteFile(p.file, []byte(p.newText), 0o644))
		}
	}

	return errors.Join(errs...)
}

// checkPages returns an error if writePages would change a page.
func checkPages(folder string) error {
	pages, err := readPages(folder)
	if err != nil {
		return err
	}

	for _, p := range pages {
		if p.newText != p.oldText {
			return fmt.Errorf("%s differs from its result files; "+
				"change the files in results/ and run: go run ./bench/measurements", p.file)
		}
	}

	return nil
}

// readPages returns all pages, sorted by file name.
func readPages(folder string) ([]page, error) {
	tables, err := readTables(folder)
	if err != nil {
		return nil, err
	}

	files, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil {
		return nil, err
	}

	var pages []page
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}

		newText, err := replaceTables(string(text), tables)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		pages = append(pages, page{file: file, oldText: string(text), newText: newText})
	}

	return pages, nil
}

// readTables returns the Markdown tables of the result files in folder/results, by name.
func readTables(folder string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "results", "*.json"))
	if err != nil {
		return nil, err
	}

	tables := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}

		r, err := results.Read(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		table, err := r.Markdown()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		name := strings.TrimSuffix(filepath.Base(file), ".json")
		tables[name] = table
	}

	return tables, nil
}

// generatedTable matches a table in a page with its comments. The submatch is the NAME of the
// result file, here "allreduce":
//
//	<!-- results/allreduce.json -->
//	| bytes | time, us |
//	|---|---|
//	| 1024 | 5.20 |
//
//	[Result file](results/allreduce.json)
//	<!-- end -->
var generatedTable = regexp.MustCompile(`(?s)<!-- results/([\w.-]+)\.json -->\n.*?<!-- end -->`)

// replaceTables replaces the tables in the text of a page. tables contains the new ones by name.
func replaceTables(text string, tables map[string]string) (string, error) {
	var missingErr error
	newTable := func(old string) string {
		name := generatedTable.FindStringSubmatch(old)[1]
		file := "results/" + name + ".json"
		table, exists := tables[name]
		if !exists {
			missingErr = fmt.Errorf("missing result file %s", file)
		}

		return "<!-- " + file + " -->\n" + table + "\n[Result file](" + file + ")\n<!-- end -->"
	}
	newText := generatedTable.ReplaceAllStringFunc(text, newTable)
	return newText, missingErr
}
