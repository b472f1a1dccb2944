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

// event holds a line of the output of go test -json (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string // empty for the package itself
	Output     string
}

// key identifies a test, or a package if test is empty.
type key struct{ pkg, test string }

func (k key) String() string {
	if k.test == "" {
		return k.pkg
	}
	return k.pkg + " " + k.test
}

// noOutcome marks a test that has started and has not reported an outcome. It is either a benchmark
// that passed, or a test that was running when its process crashed.
const noOutcome = "run"

// tally counts finished tests. If a test has subtests, only the subtests are counted. Subtests
// without a name count as the test to which they belong.
type tally struct {
	outcome map[key]string
	output  map[key][]byte
	parents map[key]bool
}

func run(in io.Reader, out io.Writer) (failed bool, err error) {
	t := tally{map[key]string{}, map[key][]byte{}, map[key]bool{}}
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
	k := key{e.Package, e.Test}
	if e.Package == "" {
		k.pkg = e.ImportPath
	}
	switch e.Action {
	case "run":
		t.outcome[k] = noOutcome
	case "output", "build-output":
		t.output[k] = append(t.output[k], e.Output...)
	case "pass", "fail", "skip", "build-fail":
		t.outcome[k] = e.Action
		parent := path.Dir(k.test)
		if parent != "." && !unnamedSubtest.MatchString(path.Base(k.test)) {
			t.parents[key{k.pkg, parent}] = true
		}
	}
}

// report writes the output of the failed tests, and the counts.
func (t *tally) report(out io.Writer) (failed bool, err error) {
	counts := map[string]int{}
	for _, k := range slices.SortedFunc(maps.Keys(t.outcome), compareKeys) {
		outcome := t.outcome[k]
		if t.isCounted(k) {
			counts[outcome]++
		}
		switch {
		case strings.HasSuffix(outcome, "fail"):
			failed = true
			fmt.Fprintf(out, "FAILED %v\n%s\n", k, t.output[k])
		case outcome == noOutcome && t.outcome[key{k.pkg, ""}] == "fail" &&
			!strings.HasPrefix(k.test, "Benchmark"):
			fmt.Fprintf(out, "NO END %v\n%s\n", k, t.output[k])
		}
	}
	if len(t.outcome) == 0 {
		return true, errors.New("no test has run")
	}
	if counts["skip"] > 0 {
		fmt.Fprintf(out, "%d skipped\n", counts["skip"])
	}
	_, err = fmt.Fprintf(out, "%d passed, %d failed\n", counts["pass"], counts["fail"])
	return failed, err
}

// isCounted reports whether the outcome of k is included in the counts. The outcome of a package is
// included only if the package crashed.
func (t *tally) isCounted(k key) bool {
	if k.test == "" {
		return t.crashed(k.pkg)
	}
	return !t.parents[k] && !unnamedSubtest.MatchString(path.Base(k.test))
}

// crashed reports whether a package failed although none of its tests did.
func (t *tally) crashed(pkg string) bool {
	if t.outcome[key{pkg, ""}] != "fail" {
		return false
	}
	for k, outcome := range t.outcome {
		if k.pkg == pkg && k.test != "" && outcome == "fail" {
			return false
		}
	}
	return true
}

func compareKeys(a, b key) int { return strings.Compare(a.String(), b.String()) }
