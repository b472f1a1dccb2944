package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// outputKind is a kind of file that a command writes.
type outputKind struct {
	name      string // for errors, with an article
	beginning string // with which each file of this kind begins
	flag      string // how the user can name another file
}

var (
	htmlPage = outputKind{
		name: "a page", beginning: "<!doctype html>", flag: "--output, or - for standard output",
	}
	zipArchive = outputKind{name: "an archive", beginning: "PK", flag: "--perfetto"}
)

// checkOverwrite returns an error if writing path would replace an input, or a file that is not of
// the given kind.
func checkOverwrite(path string, inputs []string, kind outputKind) error {
	existing, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("writing %s: %w", kind.name, err)
	}

	if !existing.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: name another with %s", path, kind.flag)
	}

	for _, input := range inputs {
		inputInfo, err := os.Stat(input)
		if err == nil && os.SameFile(inputInfo, existing) {
			return fmt.Errorf("%s is an input: name another file with %s", path, kind.flag)
		}
	}

	beginning, err := readBeginning(path)
	if err != nil {
		return fmt.Errorf("writing %s: %w", kind.name, err)
	}

	isEmpty := beginning == ""
	if !isEmpty && !strings.HasPrefix(beginning, kind.beginning) {
		return fmt.Errorf("%s is not %s, so it is not replaced: name another file with %s", path,
			kind.name, kind.flag)
	}

	return nil
}

// readBeginning returns the first 32 bytes of a file, or all of them if there are fewer.
func readBeginning(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 32)
	n, err := io.ReadFull(f, b)
	isShort := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !isShort {
		return "", err
	}

	return string(b[:n]), nil
}
