package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"symmem"
	"symmem/internal/tuning"
)

// checkTableWritable checks, before the measurement, that the tuning table can be written after it.
// It creates the folder of the table's file.
func (f *tuneFlags) checkTableWritable() error {
	if f.isDryRun {
		return nil
	}

	if err := f.checkOutput(); err != nil {
		return fmt.Errorf("checking that the table can be written: %w; name another file with --output, "+
			"or write none with --dry-run", err)
	}

	return nil
}

func (f *tuneFlags) checkOutput() error {
	// The device and the number of ranks are not known yet, but the folder does not depend on them.
	const unknownDevice, unknownRanks = "", 0
	file, err := f.tableFile(unknownDevice, unknownRanks)
	if err != nil {
		return err
	}

	if err := prepareFolder(filepath.Dir(file)); err != nil {
		return err
	}

	if f.outputFile == "" {
		return nil
	}

	return checkReplaceable(f.outputFile)
}

// prepareFolder creates a folder if necessary, and checks that files can be created in it.
func prepareFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}

	temporary, err := os.CreateTemp(folder, ".tuning-*")
	if err != nil {
		return err
	}

	closeErr := temporary.Close()
	removeErr := os.Remove(temporary.Name())
	return errors.Join(closeErr, removeErr)
}

// checkReplaceable returns an error if the path exists and is no regular file. writeTable renames
// another file to this path. This would fail for a folder, and would replace a device.
func checkReplaceable(file string) error {
	info, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", file)
	}

	return nil
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// tableFile returns the path of the table: the value of --output or, if the flag is not set, the
// file that symmem.Open finds for the device and the number of ranks.
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
	if err != nil {
		return nil
	}

	if table.Device != device { // --output can name the table of another device
		return nil
	}

	return table
}

// writeTable writes the table to the file. It replaces the file atomically, so that programs never
// read a partial table.
func writeTable(file string, table *tuning.Table) error {
	encoded, err := table.Encode()
	if err != nil {
		return err
	}

	temporary, err := os.CreateTemp(filepath.Dir(file), ".tuning-*")
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}

	_, writeErr := temporary.Write(encoded)
	chmodErr := temporary.Chmod(0o644) // CreateTemp lets only the owner read the file
	closeErr := temporary.Close()
	err = errors.Join(writeErr, chmodErr, closeErr)
	if err == nil {
		err = os.Rename(temporary.Name(), file)
	}

	if err != nil {
		removeErr := os.Remove(temporary.Name())
		return fmt.Errorf("writing the table: %w", errors.Join(err, removeErr))
	}

	return nil
}
