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

// generatedTable matches a table in a page and the comments around it. In this example, its
// submatch is "allreduce":
//
//	<!-- results/allreduce.json -->
//	| bytes | time, us |
//	|---|---|
//	| 1024 | 5.20 |
//
//	[Result file](results/allreduce.json)
//	<!-- end -->
var generatedTable = regexp.MustCompile(`(?s)<!-- results/([\w.-]+)\.json -->\n.*?<!-- end -->`)

// readTables returns the Markdown tables of the result files in folder/results, by name.
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

		name := strings.TrimSuffix(filepath.Base(file), ".json")
		tables[name] = table
	}

	return tables, nil
}

// regenerate returns the texts of all pages, by path, before and after an update of their tables.
func regenerate(folder string) (before, after map[string]string, err error) {
	tables, err := readTables(folder)
	if err != nil {
		return nil, nil, err
	}

	files, err := filepath.Glob(filepath.Join(folder, "*.md"))
	if err != nil {
		return nil, nil, err
	}

	before = map[string]string{}
	after = map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}

		newText, err := replaceTables(string(text), tables)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}

		before[file] = string(text)
		after[file] = newText
	}

	return before, after, nil
}

// replaceTables replaces the tables in a page by new ones, given by the name of the result file.
func replaceTables(page string, tables map[string]string) (string, error) {
	var err error
	newTable := func(old string) string {
		name := generatedTable.FindStringSubmatch(old)[1]
		file := "results/" + name + ".json"
		table, exists := tables[name]
		if !exists {
			err = fmt.Errorf("missing result file %s", file)
		}

		return "<!-- " + file + " -->\n" + table + "\n[Result file](" + file + ")\n<!-- end -->"
	}
	newPage := generatedTable.ReplaceAllStringFunc(page, newTable)
	return newPage, err
}

// writePages writes the pages whose tables have changed.
func writePages(folder string) error {
	before, after, err := regenerate(folder)
	if err != nil {
		return err
	}

	var errs []error
	for file, text := range after {
		if text != before[file] {
			writeErr := os.WriteFile(file, []byte(text), 0o644)
			errs = append(errs, writeErr)
		}
	}

	return errors.Join(errs...)
}

// checkPages returns an error if writePages would change a page.
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
