package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"symmem"
	"symmem/internal/tuning"
)

// checkTableWritable checks, before the measurement, that the table can be written after it.
func (f *tuneFlags) checkTableWritable() error {
	if f.isDryRun {
		return nil
	}
	// The device and the number of ranks are not known yet, but the folder does not depend on them.
	const unknownDevice, unknownRanks = "", 0
	file, err := f.tableFile(unknownDevice, unknownRanks)
	if err == nil {
		err = checkFolder(filepath.Dir(file))
	}
	if err == nil && f.outputFile != "" {
		err = checkFile(f.outputFile)
	}
	if err != nil {
		return fmt.Errorf("checking that the table can be written: %w; name another file with --output, "+
			"or write none with --dry-run", err)
	}
	return nil
}

// checkFolder creates a folder if necessary, and checks that files can be created in it.
func checkFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(folder, ".tuning-*")
	if err != nil {
		return err
	}
	return errors.Join(temporary.Close(), os.Remove(temporary.Name()))
}

// checkFile returns an error if the path exists and is no regular file. A rename could not replace
// a folder, and would replace a device.
func checkFile(file string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", file)
	}
	return err
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (f *tuneFlags) tableFile(device string, ranks int) (string, error) {
	if f.outputFile != "" {
		return f.outputFile, nil
	}
	return symmem.TuningFile(device, ranks)
}

// previousTable returns the table of the device that the new table will replace, or nil if it does
// not exist or cannot be read.
func (f *tuneFlags) previousTable(device string, ranks int) *tuning.Table {
	file, err := f.tableFile(device, ranks)
	if err != nil {
		return nil
	}
	table, err := tuning.ReadFile(file)
	if err != nil || table.Device != device {
		return nil
	}
	return table
}

// writeTable replaces the file atomically, so that programs never read a partial table.
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
