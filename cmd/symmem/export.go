package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

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
torch.cuda._memory_viz read. The addresses in them are not those of the process.

--redact writes copies of the traces that can be given to others: they have no call sites, file
paths or stacks, but keep the names and texts that the program chose. symmem diff, report and export
can read them.

All ranks return from a call that compares or combines a value (Agree, Any, Step, ...) at the same
time. From these calls, export measures how the clocks of the ranks differ, and prints the result.
It corrects times if at least three calls show a difference, and if this difference is more than
0.1 ms and more than twice the spread.

Exit codes: 0 success; 2 a file cannot be read or written; 128+n killed by signal n.`

const exportExample = `  symmem export traces/ --perfetto run.zip
  symmem export traces/ --flight-recorder dumps/
  symmem export traces/ --redact shared/
  symmem export rank0.trace rank1.trace --snapshot snapshots/ --json`

// exportFlags holds the output path of each format, or "" for formats that are not requested.
type exportFlags struct {
	perfetto       string // an archive
	flightRecorder string // a folder, like those below
	snapshot       string
	redact         string
	json           bool
}

type exportReport struct {
	Files  []exportedFile `json:"files"`
	Clocks []export.Clock `json:"clocks"` // one per rank, relative to a reference rank
	Notes  []string       `json:"notes"`  // about missing data and clocks, for the user
}

// exportedFile is an archive or folder that export has written.
type exportedFile struct {
	Format string `json:"format"`
	Path   string `json:"path"`
	Text   string `json:"text"` // summary of the contents, such as "4 ranks, 120 calls"
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
	hasFormat := f.perfetto != "" || f.flightRecorder != "" || f.snapshot != "" || f.redact != ""
	if !hasFormat {
		return errors.New("nothing to write: add --perfetto FILE, --flight-recorder DIR, " +
			"--snapshot DIR or --redact DIR")
	}

	if f.perfetto != "" {
		if err := checkReplaced(f.perfetto, args, zipArchive); err != nil {
			return exitWith(exitFailed, err)
		}
	}

	traces, err := export.Open(args)
	if err != nil {
		return exitWith(exitFailed, err)
	}

	report := &exportReport{Files: []exportedFile{}, Clocks: traces.Clocks, Notes: traces.Notes}
	if err := f.writeFiles(traces, report); err != nil {
		return exitWith(exitFailed, err)
	}

	if err := writeReport(cmd.OutOrStdout(), f.json, report, report.writeText); err != nil {
		return exitWith(exitFailed, err)
	}

	return nil
}

// writeFiles writes each requested format and adds it to the report.
func (f *exportFlags) writeFiles(traces *export.Traces, report *exportReport) error {
	ranks := len(traces.Clocks)
	if f.perfetto != "" {
		err := export.WriteFile(f.perfetto, func(w io.Writer) error {
			return export.WritePerfetto(w, traces, currentBuild().Version)
		})
		if err != nil {
			return err
		}

		report.addFile("perfetto", f.perfetto, fmt.Sprintf("%d ranks", ranks))
	}

	if f.flightRecorder != "" {
		calls, messages, err := export.WriteFlightRecorder(f.flightRecorder, traces)
		if err != nil {
			return err
		}

		text := fmt.Sprintf("%d ranks, %d calls", ranks, calls)
		if messages > 0 {
			text += fmt.Sprintf("; %d Sends and Recvs are left out", messages)
		}

		report.addFile("flight_recorder", f.flightRecorder, text)
	}

	if f.snapshot != "" {
		events, err := export.WriteSnapshots(f.snapshot, traces)
		if err != nil {
			return err
		}

		text := fmt.Sprintf("%d ranks, %d events of memory", ranks, events)
		report.addFile("snapshot", f.snapshot, text)
	}

	if f.redact != "" {
		if err := export.WriteRedacted(f.redact, traces); err != nil {
			return err
		}

		text := fmt.Sprintf("%d ranks, without paths and stacks", ranks)
		report.addFile("trace", f.redact, text)
	}

	return nil
}

// addFile records a written file under its absolute path.
func (r *exportReport) addFile(format, path, text string) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		absolute = path // the working directory has been deleted
	}

	r.Files = append(r.Files, exportedFile{Format: format, Path: absolute, Text: text})
}

func (r *exportReport) writeText(w io.Writer) error {
	for _, f := range r.Files {
		if _, err := fmt.Fprintf(w, "%s: %s\n", f.Path, f.Text); err != nil {
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
