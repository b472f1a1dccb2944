package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/report"
	"symmem/internal/page"
)

const reportLong = `report reads the same files as diff, and writes a web page that shows
what the ranks did.

The page is a single file, needs no network and can be sent to others. For each request, it shows
the memory of all ranks. It also shows the first difference, windows, pending calls, faults and
collectives by path. Press ? in the page for its keys.

The page contains the file paths, stacks and sizes that are in the files.

Exit codes: 0 the page was written and the ranks agree; 1 it was written and they differ; 2 a file
cannot be read or written; 128+n killed by signal n.`

const reportExample = `  symmem report traces/
  symmem report snapshots/ -o page.html
  symmem report -o - rank0.pickle rank1.pickle >page.html`

type reportFlags struct {
	files  fileFlags
	output string // a path, or "-" for standard output
}

func newReportCommand() *cobra.Command {
	f := &reportFlags{}
	cmd := &cobra.Command{
		Use:     "report FILE|DIRECTORY...",
		Short:   "Write a web page from recorded files that shows what ranks did",
		Long:    reportLong,
		Example: reportExample,
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.run,
	}
	flags := cmd.Flags()
	f.files.addFlags(flags)
	flags.StringVarP(&f.output, "output", "o", "report.html",
		"file to write or replace; - is standard output")
	return cmd
}

// run writes the page. If the ranks differ, the exit code is exitBadResult.
func (f *reportFlags) run(cmd *cobra.Command, args []string) error {
	writesFile := f.output != "-"
	if writesFile {
		if err := checkOverwrite(f.output, args, htmlPage); err != nil {
			return exitWith(exitIncomplete, err)
		}
	}

	sources, err := f.files.find(args)
	if err != nil {
		return err
	}

	comparison, err := f.files.compare(cmd, sources)
	if err != nil {
		return err
	}

	size, err := f.writePage(cmd, comparison)
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	if writesFile {
		const kilobyte = 1000.0
		kilobytes := int64(math.Ceil(float64(size) / kilobyte))
		fmt.Fprintf(cmd.OutOrStdout(), "%s\nThe page is %s (%d kB).\n",
			report.Summarize(comparison), f.output, kilobytes)
	}

	if !comparison.RanksAgree {
		return exitWith(exitBadResult, nil)
	}

	return nil
}

// writePage returns the size of the written file in bytes, or 0 for standard output.
func (f *reportFlags) writePage(
	cmd *cobra.Command, comparison *diff.Report,
) (size int64, err error) {
	var diffText strings.Builder // the output of symmem diff, which the page includes
	if err := comparison.WriteText(&diffText); err != nil {
		return 0, err
	}

	showProgress, clearProgress := newEventProgress(cmd)
	p := report.Build(comparison, showProgress)
	clearProgress()
	if f.output == "-" {
		return 0, p.WriteHTML(cmd.OutOrStdout(), diffText.String())
	}

	return writePageFile(f.output, p, diffText.String())
}

// writePageFile replaces the file atomically, and returns its size in bytes.
func writePageFile(file string, p *page.Page, diffText string) (size int64, err error) {
	temporary, err := os.CreateTemp(filepath.Dir(file), ".report-*") // only its owner can read it
	if err != nil {
		return 0, fmt.Errorf("writing the page: %w", err)
	}

	writeErr := p.WriteHTML(temporary, diffText)
	size, seekErr := temporary.Seek(0, io.SeekEnd)
	closeErr := temporary.Close()
	err = errors.Join(writeErr, seekErr, closeErr)
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}

	if err != nil {
		removeErr := os.Remove(temporary.Name())
		return 0, fmt.Errorf("writing the page: %w", errors.Join(err, removeErr))
	}

	return size, nil
}

// minProgressEvents is the number of events from which on report shows progress.
const minProgressEvents = 1 << 20

// newEventProgress returns a function that shows the number of converted events, and one that
// clears the terminal again. If standard error is not a terminal, showProgress is nil.
func newEventProgress(
	cmd *cobra.Command,
) (showProgress func(done, total int), clearProgress func()) {
	if !isTerminal(cmd.ErrOrStderr()) {
		return nil, func() {}
	}

	counter := &progressCounter{terminal: cmd.ErrOrStderr()}
	showEvents := newProgressLines(counter, "events converted")
	showProgress = func(done, total int) {
		if total >= minProgressEvents {
			showEvents(done, total)
		}
	}
	return showProgress, counter.end
}
