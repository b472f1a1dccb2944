// Command lines counts lines of Go code by package, excluding tests. Only lines that contain a
// token are counted, so comments and blank lines are ignored.
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
	counts, err := count(tree)
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

func count(tree fs.FS) (map[string]int, error) {
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

// countLines counts the lines that contain a token or a part of one.
func countLines(source []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return len(lines)
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue // at the end of a line
		}
		first := file.Line(pos)
		for i := range strings.Count(text, "\n") + 1 {
			lines[first+i] = true
		}
	}
}
