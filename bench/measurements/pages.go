package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"symmem/bench/results"
)

// generated is a table with the two comments around it; the first group names its result file.
var generated = regexp.MustCompile(`(?s)<!-- results/([\w.-]+)\.json -->\n.*?<!-- end -->`)

// tables are the result files of a folder as Markdown, by name.
func tables(folder string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "results", "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r, err := results.Read(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		table, err := r.Markdown()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = table
	}
	return all, nil
}

// regenerate makes the pages of a folder anew, by file, and says which of the result files is on
// none of them.
func regenerate(folder string) (before, after map[string]string, err error) {
	all, err := tables(folder)
	if err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil {
		return nil, nil, err
	}
	before, after = map[string]string{}, map[string]string{}
	shown := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		before[file] = string(text)
		after[file] = generated.ReplaceAllStringFunc(string(text), func(part string) string {
			name := generated.FindStringSubmatch(part)[1]
			table, ok := all[name]
			if !ok {
				err = fmt.Errorf("%s: there is no result file results/%s.json", file, name)
			}
			shown[name] = true
			return fmt.Sprintf("<!-- results/%[1]s.json -->\n%s\n"+
				"[Result file](results/%[1]s.json)\n<!-- end -->", name, table)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !shown[name] {
			return nil, nil, fmt.Errorf("no page of %s shows results/%s.json", folder, name)
		}
	}
	return before, after, nil
}

func write(folder string) error {
	before, after, err := regenerate(folder)
	if err != nil {
		return err
	}
	for file, text := range after {
		if text != before[file] {
			err = errors.Join(err, os.WriteFile(file, []byte(text), 0o644))
		}
	}
	return err
}

// compare fails where a page is not what its result files make of it, or has a table of its own.
// The index may have some: of pages, of commands.
func compare(folder string) error {
	before, after, err := regenerate(folder)
	if err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(after)) {
		if before[file] != after[file] {
			return fmt.Errorf("%s is not what its result files say; "+
				"change the files in results/ and run: go run ./bench/measurements", file)
		}
		if filepath.Base(file) == "README.md" {
			continue
		}
		rest := generated.ReplaceAllString(after[file], "")
		if strings.Contains(rest, "\n|") || strings.Contains(rest, "\n```") {
			return fmt.Errorf("%s has a table without a result file", file)
		}
	}
	return nil
}
