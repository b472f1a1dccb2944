package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"symmem"
	"symmem/internal/tuning"
)

// After a measurement with 8 ranks, tune writes the table to a file. Its name is that of --output
// or, by default, tuning-DEVICE-8.json in a folder of symmem. tune writes a temporary file in the
// same folder, and then renames it. Before the measurement, it checks that this will succeed: the
// folder must permit new files, and an existing file with the name must be a regular file.

// checkTableWritable returns an error if the table cannot be written after the measurement. It
// creates the folder of the table's file.
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

// checkOutput is checkTableWritable without advice in the error.
func (f *tuneFlags) checkOutput() error {
	// The device and the number of ranks determine the name of the file, but not its folder.
	const unknownDevice, unknownRanks = "", 0
	file, err := f.tableFile(unknownDevice, unknownRanks)
	if err != nil {
		return err
	}

	if err := prepareFolder(filepath.Dir(file)); err != nil {
		return err
	}

	if f.outputFile == "" { // the name of the file is not known yet
		return nil
	}

	return checkReplaceable(f.outputFile)
}

// prepareFolder creates a folder if necessary, and checks that files can be created in it.
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

// checkReplaceable returns an error if the path exists and is not a regular file. Renaming a file
// to the path of a folder would fail. Renaming it to that of a device would replace the device.
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

// previousTable returns the table that the new table will replace. It returns nil if there is none,
// it cannot be read, or it is for another device.
func (f *tuneFlags) previousTable(device string, ranks int) *tuning.Table {
	file, err := f.tableFile(device, ranks)
	if err != nil {
		return nil
	}

	table, err := tuning.ReadFile(file)
	if err != nil {
		return nil
	}

	isForDevice := table.Device == device // --output can name the table of another device
	if !isForDevice {
		return nil
	}

	return table
}

// temporaryTable is the pattern for names of temporary files.
const temporaryTable = ".tuning-*"

// writeTable writes the table to the file. It replaces the file atomically, so that programs never
// read a partial table.
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
