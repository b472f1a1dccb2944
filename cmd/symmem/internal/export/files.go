package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"symmem/trace"
)

// fileName returns a name such as snapshot_rank0. PyTorch's tools read the rank from the end of the
// name, so there is no extension.
func fileName(prefix string, rank int) string { return fmt.Sprintf("%s%d", prefix, rank) }

// writeFiles creates the folder if necessary, and calls write for each i in t.ranks.
func writeFiles(
	t *Traces, folder, prefix string, write func(w io.Writer, i int, log *trace.Log) error,
) error {
	if err := prepareFolder(t, folder, prefix); err != nil {
		return err
	}

	for i, r := range t.ranks {
		log, err := readTrace(r.path)
		if err != nil {
			return err
		}

		path := filepath.Join(folder, fileName(prefix, r.rank))
		err = WriteFile(path, func(w io.Writer) error { return write(w, i, log) })
		if err != nil {
			return err
		}
	}

	return nil
}

// prepareFolder creates the folder if necessary, and checks its content.
func prepareFolder(t *Traces, folder, prefix string) error {
	entries, err := readOrCreateFolder(folder)
	if err != nil {
		return fmt.Errorf("preparing the folder of the exported files: %w", err)
	}

	if err := checkNoInputIsOutput(t, folder, prefix); err != nil {
		return err
	}

	return checkOnlyOutputs(t, folder, prefix, entries)
}

func readOrCreateFolder(folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, os.MkdirAll(folder, 0o700)
	}

	return entries, err
}

// checkNoInputIsOutput returns an error if a rank's output would overwrite its trace.
func checkNoInputIsOutput(t *Traces, folder, prefix string) error {
	for _, r := range t.ranks {
		input, err := os.Stat(r.path)
		if err != nil {
			return fmt.Errorf("examining a trace: %w", err)
		}

		output, err := os.Stat(filepath.Join(folder, fileName(prefix, r.rank)))
		if err != nil { // the output probably does not exist yet
			continue
		}

		if os.SameFile(input, output) {
			return fmt.Errorf("%s is an input and would be overwritten: pass an empty folder", r.path)
		}
	}

	return nil
}

// checkOnlyOutputs returns an error if the folder contains anything except files that the export
// would write.
func checkOnlyOutputs(t *Traces, folder, prefix string, entries []fs.DirEntry) error {
	for _, e := range entries {
		isOutput := func(r rankTrace) bool { return e.Name() == fileName(prefix, r.rank) }
		if !slices.ContainsFunc(t.ranks, isOutput) {
			return fmt.Errorf("%s contains %s: pass an empty folder", folder,
				strings.ToValidUTF8(e.Name(), "?"))
		}
	}

	return nil
}

// WriteRedacted writes copies of the traces to a folder, without call sites, file paths and stacks.
// The folder must be empty or must not exist.
func WriteRedacted(folder string, t *Traces) error {
	entries, err := readOrCreateFolder(folder)
	if err != nil {
		return fmt.Errorf("creating the folder of the redacted traces: %w", err)
	}

	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty: pass an empty folder for the redacted traces", folder)
	}

	for _, r := range t.ranks {
		b, err := os.ReadFile(r.path)
		if err == nil {
			err = trace.Redact(b)
		}

		if err != nil {
			return fmt.Errorf("redacting %s: %w", r.path, err)
		}

		err = WriteFile(filepath.Join(folder, trace.FileName(r.rank)), func(w io.Writer) error {
			_, err := w.Write(b)
			return err
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// WriteFile atomically creates or replaces a file that only this user can read. On an error, it
// leaves an existing file unchanged.
func WriteFile(path string, write func(io.Writer) error) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}

	writeErr := write(temporary)
	closeErr := temporary.Close()
	err = errors.Join(writeErr, closeErr)
	if err == nil {
		err = os.Rename(temporary.Name(), path)
	}

	if err != nil {
		removeErr := os.Remove(temporary.Name())
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, removeErr))
	}

	return nil
}
