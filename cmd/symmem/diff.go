package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/load"
)

const diffLong = `diff reads files that ranks recorded, and finds the first event that differs.

It reads traces of symmem (SYMMEM_TRACE), memory snapshots of PyTorch
(torch.cuda.memory._dump_snapshot) and dumps of PyTorch's Flight Recorder, as pickles or JSON.
Nothing in a pickle is executed. Each rank has one file of each kind. The name of a file contains
its rank: the number after "rank" or, without this word, the last number. In a directory, diff reads
all files except "*.old" and "*.html".

diff prints the first request (allocation, free or collective) and the first address (segment and
offset) that differ, with stacks and the five preceding requests. It also prints whether the first
difference explains the others, and how symmem's pools would place the requests.

If there are MemPools, diff compares only these, because other memory is expected to differ between
ranks. --all-pools compares everything. The fields of --json are listed in docs/reference/json.md.

Exit codes: 0 the ranks agree; 1 they differ; 2 a file cannot be read; 128+n killed by signal n.`

const diffExample = `  symmem diff snapshot_rank0.pickle snapshot_rank1.pickle
  symmem diff --json traces/
  symmem diff good.pickle bad.pickle --rank good.pickle=0 --rank bad.pickle=1`

type diffFlags struct {
	files fileFlags
	json  bool
}

func newDiffCommand() *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:     "diff FILE|DIRECTORY...",
		Short:   "Find, in recorded files, the first event that differs between ranks",
		Long:    diffLong,
		Example: diffExample,
		Args:    cobra.MinimumNArgs(1),
		RunE:    f.run,
	}
	flags := cmd.Flags()
	f.files.addFlags(flags)
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

// run prints a comparison of the files. If the ranks differ, the exit code is exitBadResult.
func (f *diffFlags) run(cmd *cobra.Command, args []string) error {
	sources, err := f.files.find(args)
	if err != nil {
		return err
	}

	if len(sources) == 1 {
		return errors.New("one file is not enough: pass the files of at least two ranks")
	}

	report, err := f.files.compare(cmd, sources)
	if err != nil {
		return err
	}

	if !report.HasComparison() {
		return exitWith(exitIncomplete, errors.New("nothing to compare: no pool or group has events "+
			"in the files of two ranks"))
	}

	if err := writeReport(cmd.OutOrStdout(), f.json, report); err != nil {
		return exitWith(exitIncomplete, err)
	}

	if !report.RanksAgree {
		return exitWith(exitBadResult, nil)
	}

	return nil
}

// fileFlags holds the flags shared by diff and report.
type fileFlags struct {
	fileRanks []string // values of --rank, such as "good.pickle=0" for a file of rank 0
	device    int      // of snapshots; -1 selects the only device with events
	allPools  bool     // also compare the default pool and the pools of graphs
}

func (f *fileFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.fileRanks, "rank", nil,
		"rank of a file, as FILE=N (default: from the trace or the name of the file)")
	flags.IntVar(&f.device, "device", -1, "device of a snapshot (default: the only one with events)")
	flags.BoolVar(&f.allPools, "all-pools", false,
		"also compare the default pool and the pools of graphs")
}

// find lists the files in paths, with their ranks. It returns at least one file or an error.
func (f *fileFlags) find(paths []string) ([]load.Source, error) {
	ranks, err := f.parseFileRanks()
	if err != nil {
		return nil, err
	}

	sources, err := load.Find(paths, ranks)
	if err != nil {
		return nil, exitWith(exitIncomplete, err)
	}

	return sources, nil
}

// compare reads the files and compares the ranks that recorded them.
func (f *fileFlags) compare(cmd *cobra.Command, sources []load.Source) (*diff.Report, error) {
	showProgress, clearProgress := newReadProgress(cmd)
	histories, err := load.Files(sources, load.Options{Device: f.device, Progress: showProgress})
	clearProgress()
	if err != nil {
		return nil, exitWith(exitIncomplete, err)
	}

	return diff.Compare(histories, diff.Options{AllPools: f.allPools}), nil
}

// parseFileRanks returns the ranks given by --rank, by clean path.
func (f *fileFlags) parseFileRanks() (map[string]int, error) {
	ranks := map[string]int{}
	for _, text := range f.fileRanks {
		file, rank, ok := parseFileRank(text)
		if !ok {
			return nil, fmt.Errorf("--rank %q is not FILE=N", text)
		}

		ranks[filepath.Clean(file)] = rank
	}

	return ranks, nil
}

// parseFileRank splits FILE=N at the last "=", because a file name may also contain "=".
func parseFileRank(text string) (file string, rank int, ok bool) {
	separator := strings.LastIndex(text, "=")
	if separator < 0 {
		return "", 0, false
	}

	file, number := text[:separator], text[separator+1:]
	rank, err := strconv.Atoi(number)
	return file, rank, err == nil && rank >= 0
}

// minProgressBytes is the total size of files from which on diff shows progress.
const minProgressBytes = 64 << 20

// newReadProgress returns a function that shows how much has been read, and one that clears the
// terminal again. If standard error is not a terminal, showProgress is nil.
func newReadProgress(
	cmd *cobra.Command,
) (showProgress func(done, total int64), clearProgress func()) {
	if !isTerminal(cmd.ErrOrStderr()) {
		return nil, func() {}
	}

	var mu sync.Mutex // load.Files reads files concurrently
	counter := &progressCounter{terminal: cmd.ErrOrStderr()}
	showMiB := newProgressLines(counter, "MiB read")
	showProgress = func(done, total int64) {
		if total < minProgressBytes {
			return
		}

		const mib = 1 << 20
		mu.Lock()
		defer mu.Unlock()
		showMiB(int(done/mib), int(total/mib))
	}
	return showProgress, counter.end
}
