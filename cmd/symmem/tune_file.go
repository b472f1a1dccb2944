package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"symmem"
	"symmem/internal/tuning"
)

// temporaryTable is the name pattern of a new table before it is renamed.
const temporaryTable = ".tuning-*"

// checkTableWritable creates the folder of the table. It finds most problems of writeTable before
// the long measurement.
func (f *tuneFlags) checkTableWritable() error {
	if f.isDryRun {
		return nil
	}

	if err := f.prepareOutput(); err != nil {
		return fmt.Errorf("checking that the table can be written: %w; name another file with --output, "+
			"or write none with --dry-run", err)
	}

	return nil
}

func (f *tuneFlags) prepareOutput() error {
	// The device and the number of ranks affect only the default name of the file, not the folder.
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

	return checkRegular(f.outputFile)
}

// prepareFolder creates a folder unless it exists, and checks that it permits new files.
func prepareFolder(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}

	temporary, err := os.CreateTemp(folder, temporaryTable)
	if err != nil {
		return err
	}

	closeErr := temporary.Close()
	removeErr := os.Remove(temporary.Name())
	return errors.Join(closeErr, removeErr)
}

// checkRegular returns an error if file exists but is not a regular file. A rename would fail on a
// folder, and destroy a device such as /dev/null.
func checkRegular(file string) error {
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

// tableFile returns the path of the table. Without --output, it is the path that symmem.Open reads.
func (f *tuneFlags) tableFile(device string, ranks int) (string, error) {
	if f.outputFile != "" {
		return f.outputFile, nil
	}

	return symmem.TuningFile(device, ranks)
}

// previousTable returns the table that will be replaced, or nil if it cannot be read or is for
// another device.
func (f *tuneFlags) previousTable(device string, ranks int) *tuning.Table {
	file, err := f.tableFile(device, ranks)
	if err != nil {
		return nil
	}

	table, err := tuning.ReadFile(file)
	isUsable := err == nil && table.Device == device // the file of --output may be for any device
	if !isUsable {
		return nil
	}

	return table
}

// writeTable replaces the file atomically, so that programs never read a partial table.
func writeTable(file string, table *tuning.Table) error {
	encoded, err := table.Encode()
	if err != nil {
		return err
	}

	temporary, err := os.CreateTemp(filepath.Dir(file), temporaryTable)
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
