package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"symmem"
	"symmem/internal/tuning"
)

// checkWritable checks in advance that the table can be written.
func (f *tuneFlags) checkWritable() error {
	if f.dryRun {
		return nil
	}
	// The device is not known yet, but the folder does not depend on it.
	file, err := f.file("", 0)
	if err == nil {
		err = tryFolder(filepath.Dir(file))
	}
	if err == nil && f.output != "" {
		err = tryFile(f.output)
	}
	if err != nil {
		return fmt.Errorf("checking that the table can be written: %w; name another file with --output, "+
			"or write none with --dry-run", err)
	}
	return nil
}

// tryFolder creates a folder if necessary, and checks that files can be created in it.
func tryFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(folder, ".tuning-*")
	if err != nil {
		return err
	}
	return errors.Join(temporary.Close(), os.Remove(temporary.Name()))
}

// tryFile returns an error if the path exists and is not a regular file.
func tryFile(file string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", file)
	}
	return err
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (f *tuneFlags) file(device string, ranks int) (string, error) {
	if f.output != "" {
		return f.output, nil
	}
	return symmem.TuningFile(device, ranks)
}

// previousTable returns the table that will be replaced, or nil if there is none for this device.
func (f *tuneFlags) previousTable(device string, ranks int) *tuning.Table {
	file, err := f.file(device, ranks)
	if err != nil {
		return nil
	}
	table, err := tuning.ReadFile(file)
	if err != nil || table.Device != device {
		return nil
	}
	return table
}

// writeTable replaces a file atomically, so that programs never read a partial table.
func writeTable(file string, table *tuning.Table) (err error) {
	encoded, err := table.Encode()
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(file), ".tuning-*")
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	_, writeErr := temporary.Write(encoded)
	err = errors.Join(writeErr, temporary.Chmod(0o644), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("writing the table: %w", errors.Join(err, os.Remove(temporary.Name())))
	}
	return nil
}
