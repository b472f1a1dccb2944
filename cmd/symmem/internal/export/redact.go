package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"symmem/trace"
)

// WriteRedacted writes copies of the traces to a folder, without call sites, file paths and stacks.
// The folder must be empty or must not exist.
func WriteRedacted(folder string, t *Traces) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(folder, 0o700)
	}

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
