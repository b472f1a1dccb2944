// Command lines counts the lines of Go code in each package below a folder. It ignores tests,
// comments and blank lines.
//
//	go run ./internal/house/lines [FOLDER]
//
// The default is the current folder.
package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

func main() {
	folder := "."
	if len(os.Args) > 1 {
		folder = os.Args[1]
	}

	if err := run(os.DirFS(folder), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

// run prints the number of lines in each folder, and their sum.
func run(tree fs.FS, out io.Writer) error {
	counts, err := countByFolder(tree)
	if err != nil {
		return err
	}

	total := 0
	for _, folder := range slices.Sorted(maps.Keys(counts)) {
		total += counts[folder]
		fmt.Fprintf(out, "%6d  %s\n", counts[folder], folder)
	}

	_, err = fmt.Fprintf(out, "%6d  in all\n", total)
	return err
}

func countByFolder(tree fs.FS) (map[string]int, error) {
	counts := map[string]int{}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			isHidden := strings.HasPrefix(entry.Name(), ".") && name != "."
			if isHidden || entry.Name() == "testdata" {
				return fs.SkipDir
			}

			return nil
		}

		isGo := path.Ext(name) == ".go"
		isTest := strings.HasSuffix(name, "_test.go")
		if !isGo || isTest {
			return nil
		}

		source, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}

		counts[path.Dir(name)] += countLines(source)
		return nil
	})
	return counts, err
}

// countLines returns the number of lines with code, including all lines of a raw string.
func countLines(source []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0) // skips comments and ignores errors
	lines := map[int]bool{}      // line numbers
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}

		// The scanner inserts a semicolon at the end of a line as a token with the text "\n".
		isInserted := kind == token.SEMICOLON && text == "\n"
		if isInserted {
			continue
		}

		firstLine := file.Line(pos)
		lineCount := strings.Count(text, "\n") + 1
		for i := range lineCount {
			lines[firstLine+i] = true
		}
	}
}
