// Command lines prints the number of lines of Go code in each package of a folder, which is the
// current one by default. It ignores tests, comments and blank lines.
//
//	go run ./internal/house/lines [FOLDER]
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

// countByFolder returns the number of lines in each folder with Go code.
func countByFolder(tree fs.FS) (map[string]int, error) {
	counts := map[string]int{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(tree, name)
		counts[path.Dir(name)] += countLines(source)
		return err
	})
	return counts, err
}

// countLines returns the number of lines that contain a token or a part of a token.
func countLines(source []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0) // ignore errors and comments
	lines := map[int]bool{}      // numbers of lines with a token
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue // added by the scanner at the end of a line
		}
		first := file.Line(pos)
		for i := range strings.Count(text, "\n") + 1 {
			lines[first+i] = true
		}
	}
}
