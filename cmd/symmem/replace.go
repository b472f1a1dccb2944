package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// outputKind is a kind of file that a command writes.
type outputKind struct{ name, beginning, flag string }

var (
	htmlPage   = outputKind{"a page", "<!doctype html>", "--output, or - for standard output"}
	zipArchive = outputKind{"an archive", "PK", "--perfetto"}
)

// checkReplaced returns an error if writing path would replace an input, or a file that is not of
// the given kind.
func checkReplaced(path string, inputs []string, kind outputKind) error {
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
		if info, err := os.Stat(input); err == nil && os.SameFile(info, existing) {
			return fmt.Errorf("%s is an input: name another file with %s", path, kind.flag)
		}
	}
	beginning, err := readBeginning(path)
	if err != nil {
		return fmt.Errorf("writing %s: %w", kind.name, err)
	}
	if beginning != "" && !strings.HasPrefix(beginning, kind.beginning) {
		return fmt.Errorf("%s is not %s, so it is not replaced: name another file with %s", path,
			kind.name, kind.flag)
	}
	return nil
}

func readBeginning(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 32)
	n, err := io.ReadFull(f, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return string(b[:n]), nil
}
