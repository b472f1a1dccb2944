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

// A page can contain a generated table, between two comments:
//
//	<!-- results/allreduce.json -->
//	| bytes | time, us |
//	|---|---|
//	| 1024 | 5.20 |
//
//	[Result file](results/allreduce.json)
//	<!-- end -->
//
// If the result file results/allreduce.json has changed, the lines between the comments are
// replaced.

// generatedTable matches a generated table and its two comments. Its group is the name of the
// result file: "allreduce" in the example.
var generatedTable = regexp.MustCompile(`(?s)<!-- results/([\w.-]+)\.json -->\n.*?<!-- end -->`)

// readTables returns the tables of all result files as Markdown, by the names of the files. folder
// is docs/measurements.
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

// regenerate returns the texts of all pages by path. before has the current texts, and after has
// the texts with new tables.
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

// replaceTables replaces the generated tables in the text of a page. tables has the new ones by the
// names of result files. If one is missing, it returns an error.
func replaceTables(text string, tables map[string]string) (string, error) {
	var err error
	replace := func(old string) string {
		name := generatedTable.FindStringSubmatch(old)[1]
		file := "results/" + name + ".json"
		table, exists := tables[name]
		if !exists {
			err = fmt.Errorf("missing result file %s", file)
		}

		return "<!-- " + file + " -->\n" + table + "\n[Result file](" + file + ")\n<!-- end -->"
	}
	newText := generatedTable.ReplaceAllStringFunc(text, replace)
	return newText, err
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

// checkPages returns an error about the first page, by path, that writePages would change.
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
