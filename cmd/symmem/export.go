package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"symmem/cmd/symmem/internal/export"
)

const exportLong = `export converts traces of symmem (SYMMEM_TRACE) for other tools.

--perfetto writes one ZIP archive of all ranks for https://ui.perfetto.dev or trace_processor
(version 58 or newer). It contains the submitted collectives, values, steps and faults of each
group, and the memory of pools. A trace does not record when collectives complete, so they have no
duration.

--flight-recorder writes dumps that PyTorch's analyzer reads: python -m
torch.distributed.flight_recorder.fr_trace FOLDER. Sends and Recvs are left out.

--snapshot writes memory snapshots that https://pytorch.org/memory_viz and python -m
torch.cuda._memory_viz read. Their addresses differ from the addresses in the process.

--redact writes copies of the traces without call sites, file paths and stacks, to give to others.
The copies keep the names and texts that the program chose. symmem diff, report and export read
them.

Some calls, such as Agree, Any and Step, return on all ranks at the same time. From these calls,
export measures how the clocks of the ranks differ, and prints the result. It corrects the times if
there are at least three such calls, and the difference is more than 0.1 ms and more than twice the
spread.

Exit codes: 0 success; 2 a file cannot be read or written; 128+n killed by signal n.`

const exportExample = `  symmem export traces/ --perfetto run.zip
  symmem export traces/ --flight-recorder dumps/
  symmem export traces/ --redact shared/
  symmem export rank0.trace rank1.trace --snapshot snapshots/ --json`

// exportFlags holds the output path of each format, or "" for formats that are not requested.
type exportFlags struct {
	perfetto       string // an archive
	flightRecorder string // a folder
	snapshot       string // a folder
	redact         string // a folder
	json           bool
}

type exportReport struct {
	Files  []exportedFile `json:"files"`
	Clocks []export.Clock `json:"clocks"` // of each rank, relative to a reference rank
	Notes  []string       `json:"notes"`  // about missing data and clocks, for the user
}

// exportedFile describes an archive or folder that export has written.
type exportedFile struct {
	Format  string `json:"format"`
	Path    string `json:"path"`
	Summary string `json:"text"` // such as "4 ranks, 120 calls"
}

func newExportCommand() *cobra.Command {
	f := &exportFlags{}
	cmd := &cobra.Command{
		Use:     "export FILE|DIRECTORY...",
		Short:   "Convert traces for Perfetto, PyTorch's Flight Recorder and memory_viz",
		Long:    exportLong,
		Example: exportExample,
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.perfetto, "perfetto", "", "archive to write for Perfetto")
	flags.StringVar(&f.flightRecorder, "flight-recorder", "", "folder for Flight Recorder dumps")
	flags.StringVar(&f.snapshot, "snapshot", "", "folder for memory snapshots")
	flags.StringVar(&f.redact, "redact", "", "folder for traces without paths and stacks")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

// run writes the requested formats and prints what it has written.
func (f *exportFlags) run(cmd *cobra.Command, args []string) error {
	outputs := f.requestedOutputs()
	if len(outputs) == 0 {
		return errors.New("nothing to write: add --perfetto FILE, --flight-recorder DIR, " +
			"--snapshot DIR or --redact DIR")
	}

	if f.perfetto != "" { // the other outputs are folders
		if err := checkOverwrite(f.perfetto, args, zipArchive); err != nil {
			return exitWith(exitIncomplete, err)
		}
	}

	traces, err := export.Open(args)
	if err != nil {
		return exitWith(exitIncomplete, err)
	}

	report := &exportReport{Files: []exportedFile{}, Clocks: traces.Clocks, Notes: traces.Notes}
	for _, o := range outputs {
		summary, err := o.write(o.path, traces)
		if err != nil {
			return exitWith(exitIncomplete, err)
		}

		report.addFile(o.format, o.path, summary)
	}

	if err := writeReport(cmd.OutOrStdout(), f.json, report); err != nil {
		return exitWith(exitIncomplete, err)
	}

	return nil
}

// exportOutput is a format that the user can request.
type exportOutput struct {
	format string
	path   string // of an archive or folder; "" if not requested
	write  func(path string, traces *export.Traces) (summary string, err error)
}

func (f *exportFlags) requestedOutputs() []exportOutput {
	outputs := []exportOutput{
		{"perfetto", f.perfetto, exportPerfetto},
		{"flight_recorder", f.flightRecorder, exportFlightRecorder},
		{"snapshot", f.snapshot, exportSnapshots},
		{"trace", f.redact, exportRedacted},
	}
	return slices.DeleteFunc(outputs, func(o exportOutput) bool { return o.path == "" })
}

func exportPerfetto(archive string, traces *export.Traces) (summary string, err error) {
	err = export.WriteFile(archive, func(w io.Writer) error {
		return export.WritePerfetto(w, traces, currentBuild().Version)
	})
	return fmt.Sprintf("%d ranks", len(traces.Clocks)), err
}

func exportFlightRecorder(folder string, traces *export.Traces) (summary string, err error) {
	calls, messages, err := export.WriteFlightRecorder(folder, traces)
	summary = fmt.Sprintf("%d ranks, %d calls", len(traces.Clocks), calls)
	if messages > 0 {
		summary += fmt.Sprintf("; %d Sends and Recvs are left out", messages)
	}

	return summary, err
}

func exportSnapshots(folder string, traces *export.Traces) (summary string, err error) {
	events, err := export.WriteSnapshots(folder, traces)
	return fmt.Sprintf("%d ranks, %d events of memory", len(traces.Clocks), events), err
}

func exportRedacted(folder string, traces *export.Traces) (summary string, err error) {
	err = export.WriteRedacted(folder, traces)
	return fmt.Sprintf("%d ranks, without paths and stacks", len(traces.Clocks)), err
}

// addFile adds a written archive or folder, with its absolute path.
func (r *exportReport) addFile(format, path, summary string) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		absolute = path // for example, the working directory has been deleted
	}

	r.Files = append(r.Files, exportedFile{Format: format, Path: absolute, Summary: summary})
}

func (r *exportReport) WriteText(w io.Writer) error {
	for _, f := range r.Files {
		if _, err := fmt.Fprintf(w, "%s: %s\n", f.Path, f.Summary); err != nil {
			return err
		}
	}

	for _, note := range r.Notes {
		if _, err := fmt.Fprintf(w, "note: %s\n", note); err != nil {
			return err
		}
	}

	return nil
}
