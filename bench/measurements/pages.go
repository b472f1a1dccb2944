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

// generatedTable matches a table with the comments around it. It captures the result file's name.
var generatedTable = regexp.MustCompile(`(?s)<!-- results/([\w.-]+)\.json -->\n.*?<!-- end -->`)

// readTables returns the tables of a folder's result files as Markdown, by name.
func readTables(folder string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(folder, "results", "*.json"))
	if err != nil {
		return nil, err
	}
	tables := map[string]string{}
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
		tables[strings.TrimSuffix(filepath.Base(file), ".json")] = table
	}
	return tables, nil
}

// regenerate returns the texts of the pages by path, with the old and with new tables.
func regenerate(folder string) (before, after map[string]string, err error) {
	tables, err := readTables(folder)
	if err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil {
		return nil, nil, err
	}
	before, after = map[string]string{}, map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		before[file] = string(text)
		after[file] = generatedTable.ReplaceAllStringFunc(string(text), func(old string) string {
			name := generatedTable.FindStringSubmatch(old)[1]
			table, exists := tables[name]
			if !exists {
				err = fmt.Errorf("%s: missing result file results/%s.json", file, name)
			}
			return fmt.Sprintf("<!-- results/%[1]s.json -->\n%s\n"+
				"[Result file](results/%[1]s.json)\n<!-- end -->", name, table)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return before, after, nil
}

func writePages(folder string) error {
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

func checkPages(folder string) error {
	before, after, err := regenerate(folder)
	if err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(after)) {
		if before[file] != after[file] {
			return fmt.Errorf("%s differs from its result files; "+
				"change the files in results/ and run: go run ./bench/measurements", file)
		}
	}
	return nil
}
