// Command tally summarizes the output of go test -json. It prints the output of failed tests, and
// the number of tests that passed and failed. It fails if a test failed.
//
//	go test -json ./... | go run ./internal/house/tally
//
// Subtests count instead of their parents: if TestSum/int8 passes and TestSum/int16 fails, the
// summary is "1 passed, 1 failed". A package that fails without a failed test, because it crashes
// or does not build, adds 1 to the failures.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	failed, err := run(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}

	if failed {
		os.Exit(1)
	}
}

// event is a line of the output of go test -json. See go doc test2json.
type event struct {
	Action     string // such as "run", "output" or "pass"
	Package    string // empty while building
	ImportPath string // package that is being built
	Test       string // empty for events of a package
	Output     string // for the actions "output" and "build-output"
}

// testID identifies a test, or a package if test is empty.
type testID struct{ pkg, test string }

func (id testID) String() string {
	if id.test == "" {
		return id.pkg
	}

	return id.pkg + " " + id.test
}

var numberPattern = regexp.MustCompile(`^#[0-9]+$`)

// isNumbered reports whether id is a subtest without a name, which go test numbers, such as
// TestSum/#01. The parents of numbered subtests count instead of them.
func (id testID) isNumbered() bool { return numberPattern.MatchString(path.Base(id.test)) }

// unfinished is the outcome of a test without a final event, such as a benchmark that passes.
const unfinished = "run"

// tally records the outcomes of tests and packages.
type tally struct {
	outcomes map[testID]string // unfinished, or a final action such as "pass"
	outputs  map[testID][]byte
	parents  map[testID]bool // tests whose subtests count instead
}

// run reads events from in, and writes the output of failed tests and a summary to out.
func run(in io.Reader, out io.Writer) (hasFailed bool, err error) {
	t := tally{
		outcomes: map[testID]string{},
		outputs:  map[testID][]byte{},
		parents:  map[testID]bool{},
	}
	lines := json.NewDecoder(in)
	for {
		var e event
		err = lines.Decode(&e)
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

func (t *tally) add(e *event) {
	id := testID{pkg: cmp.Or(e.Package, e.ImportPath), test: e.Test}
	switch e.Action {
	case "run":
		t.outcomes[id] = unfinished
	case "output", "build-output":
		t.outputs[id] = append(t.outputs[id], e.Output...)
	case "pass", "fail", "skip", "build-fail":
		t.outcomes[id] = e.Action
		isSubtest := strings.Contains(id.test, "/")
		if isSubtest && !id.isNumbered() {
			t.parents[testID{pkg: id.pkg, test: path.Dir(id.test)}] = true
		}
	}
}

// report writes the output of failed tests, and a summary.
func (t *tally) report(out io.Writer) (hasFailed bool, err error) {
	if len(t.outcomes) == 0 {
		return true, errors.New("no test has run")
	}

	counts := map[string]int{} // by outcome
	for _, id := range slices.SortedFunc(maps.Keys(t.outcomes), compareIDs) {
		outcome := t.outcomes[id]
		if t.isCounted(id) {
			counts[outcome]++
		}

		switch {
		case outcome == "fail" || outcome == "build-fail":
			hasFailed = true
			fmt.Fprintf(out, "FAILED %v\n%s\n", id, t.outputs[id])
		case t.wasInterrupted(id):
			fmt.Fprintf(out, "NO END %v\n%s\n", id, t.outputs[id])
		}
	}

	if counts["skip"] > 0 {
		fmt.Fprintf(out, "%d skipped\n", counts["skip"])
	}

	_, err = fmt.Fprintf(out, "%d passed, %d failed\n", counts["pass"], counts["fail"])
	return hasFailed, err
}

func (t *tally) isCounted(id testID) bool {
	if id.test == "" {
		return t.failedWithoutTest(id.pkg)
	}

	return !t.parents[id] && !id.isNumbered()
}

// wasInterrupted reports whether the crash of a package ended a test.
func (t *tally) wasInterrupted(id testID) bool {
	isBenchmark := strings.HasPrefix(id.test, "Benchmark")
	return t.outcomes[id] == unfinished && !isBenchmark && t.hasPackageFailed(id.pkg)
}

func (t *tally) hasPackageFailed(pkg string) bool {
	return t.outcomes[testID{pkg: pkg}] == "fail"
}

// failedWithoutTest reports whether a package failed, but none of its tests did.
func (t *tally) failedWithoutTest(pkg string) bool {
	if !t.hasPackageFailed(pkg) {
		return false
	}

	for id, outcome := range t.outcomes {
		isTest := id.pkg == pkg && id.test != ""
		if isTest && outcome == "fail" {
			return false
		}
	}

	return true
}

func compareIDs(a, b testID) int { return strings.Compare(a.String(), b.String()) }
