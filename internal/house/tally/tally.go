package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// event is a line of the output of go test -json (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string // empty for the package
	Output     string
}

// testID identifies a test, or a package if test is empty.
type testID struct{ pkg, test string }

func (id testID) String() string {
	if id.test == "" {
		return id.pkg
	}
	return id.pkg + " " + id.test
}

// A benchmark that passed, or a test that was running when its process crashed, has no outcome.
const noOutcome = "run"

// tally counts subtests instead of their parents. Subtests without a name count as their parent.
type tally struct {
	outcome map[testID]string
	output  map[testID][]byte
	parents map[testID]bool
}

func run(in io.Reader, out io.Writer) (hasFailed bool, err error) {
	t := tally{map[testID]string{}, map[testID][]byte{}, map[testID]bool{}}
	lines := json.NewDecoder(in)
	for {
		var e event
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return true, fmt.Errorf("reading the events of go test: %w", err)
		}
		t.add(&e)
	}
	return t.report(out)
}

// unnamedSubtest matches the names that go test gives to subtests without a name.
var unnamedSubtest = regexp.MustCompile(`^#[0-9]+$`)

func (t *tally) add(e *event) {
	id := testID{e.Package, e.Test}
	if e.Package == "" {
		id.pkg = e.ImportPath
	}
	switch e.Action {
	case "run":
		t.outcome[id] = noOutcome
	case "output", "build-output":
		t.output[id] = append(t.output[id], e.Output...)
	case "pass", "fail", "skip", "build-fail":
		t.outcome[id] = e.Action
		parent := path.Dir(id.test)
		if parent != "." && !unnamedSubtest.MatchString(path.Base(id.test)) {
			t.parents[testID{id.pkg, parent}] = true
		}
	}
}

func (t *tally) report(out io.Writer) (hasFailed bool, err error) {
	counts := map[string]int{}
	for _, id := range slices.SortedFunc(maps.Keys(t.outcome), compareIDs) {
		outcome := t.outcome[id]
		if t.isCounted(id) {
			counts[outcome]++
		}
		switch {
		case strings.HasSuffix(outcome, "fail"):
			hasFailed = true
			fmt.Fprintf(out, "FAILED %v\n%s\n", id, t.output[id])
		case outcome == noOutcome && t.outcome[testID{id.pkg, ""}] == "fail" &&
			!strings.HasPrefix(id.test, "Benchmark"):
			fmt.Fprintf(out, "NO END %v\n%s\n", id, t.output[id])
		}
	}
	if len(t.outcome) == 0 {
		return true, errors.New("no test has run")
	}
	if counts["skip"] > 0 {
		fmt.Fprintf(out, "%d skipped\n", counts["skip"])
	}
	_, err = fmt.Fprintf(out, "%d passed, %d failed\n", counts["pass"], counts["fail"])
	return hasFailed, err
}

// isCounted reports whether the outcome of id is included in the counts. A package is counted only
// if it crashed.
func (t *tally) isCounted(id testID) bool {
	if id.test == "" {
		return t.hasCrashed(id.pkg)
	}
	return !t.parents[id] && !unnamedSubtest.MatchString(path.Base(id.test))
}

// hasCrashed reports whether a package failed although none of its tests did.
func (t *tally) hasCrashed(pkg string) bool {
	if t.outcome[testID{pkg, ""}] != "fail" {
		return false
	}
	for id, outcome := range t.outcome {
		if id.pkg == pkg && id.test != "" && outcome == "fail" {
			return false
		}
	}
	return true
}

func compareIDs(a, b testID) int { return strings.Compare(a.String(), b.String()) }
