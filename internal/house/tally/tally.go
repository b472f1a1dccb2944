package main

import (
	"cmp"
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

// Suppose that the package "example/sum" has one test with two subtests. Then go test -json writes
// an event when each test starts and when it ends:
//
//	run    TestSum
//	run    TestSum/int8
//	pass   TestSum/int8
//	run    TestSum/int16
//	fail   TestSum/int16
//	fail   TestSum
//	fail   (the package)
//
// The summary is "1 passed, 1 failed". Only the two subtests count. The outcomes of TestSum and of
// the package follow from theirs. If the process crashes, tests have no end, and the package counts
// as one failure.

// event is a line of the output of go test -json (see go doc test2json).
type event struct {
	Action     string // such as "run", "output" or "pass"
	Package    string // empty for events of a build
	ImportPath string // package of a build
	Test       string // empty for events of the package
	Output     string // part of the output, for the action "output"
}

// testID identifies a test or, if test is empty, a package.
type testID struct{ pkg, test string }

func (id testID) String() string {
	if id.test == "" {
		return id.pkg
	}

	return id.pkg + " " + id.test
}

// noOutcome is the outcome of a test that has no end. The process has crashed during the test, or
// the test is a benchmark that has passed: go test reports no end of it.
const noOutcome = "run"

// tally records the outcomes of tests and packages.
type tally struct {
	outcomes map[testID]string // noOutcome, or the action of the last event
	outputs  map[testID][]byte
	parents  map[testID]bool // tests with named subtests
}

// run reads the events of go test from in, and writes the failed tests and a summary to out.
func run(in io.Reader, out io.Writer) (hasFailed bool, err error) {
	t := tally{
		outcomes: map[testID]string{},
		outputs:  map[testID][]byte{},
		parents:  map[testID]bool{},
	}
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

// unnamedSubtest matches the names that go test gives to subtests without a name. Instead
// of them, the summary counts their parent.
var unnamedSubtest = regexp.MustCompile(`^#[0-9]+$`)

// add records an event.
func (t *tally) add(e *event) {
	id := testID{pkg: cmp.Or(e.Package, e.ImportPath), test: e.Test}
	switch e.Action {
	case "run":
		t.outcomes[id] = noOutcome
	case "output", "build-output":
		t.outputs[id] = append(t.outputs[id], e.Output...)
	case "pass", "fail", "skip", "build-fail":
		t.outcomes[id] = e.Action
		parent := path.Dir(id.test)
		isSubtest := parent != "."
		if isSubtest && !unnamedSubtest.MatchString(path.Base(id.test)) {
			t.parents[testID{pkg: id.pkg, test: parent}] = true
		}
	}
}

// report writes the failed tests and a summary. hasFailed is also true if no test has run.
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

		isFailure := strings.HasSuffix(outcome, "fail") // "fail" or "build-fail"
		if isFailure {
			hasFailed = true
			fmt.Fprintf(out, "FAILED %v\n%s\n", id, t.outputs[id])
			continue
		}

		isBenchmark := strings.HasPrefix(id.test, "Benchmark")
		if outcome == noOutcome && !isBenchmark && t.hasPackageFailed(id.pkg) {
			fmt.Fprintf(out, "NO END %v\n%s\n", id, t.outputs[id])
		}
	}

	if counts["skip"] > 0 {
		fmt.Fprintf(out, "%d skipped\n", counts["skip"])
	}

	_, err = fmt.Fprintf(out, "%d passed, %d failed\n", counts["pass"], counts["fail"])
	return hasFailed, err
}

// isCounted reports whether the summary counts the outcome of id.
func (t *tally) isCounted(id testID) bool {
	if id.test == "" {
		return t.hasCrashed(id.pkg)
	}

	return !t.parents[id] && !unnamedSubtest.MatchString(path.Base(id.test))
}

// hasPackageFailed reports whether go test has reported the failure of a package.
func (t *tally) hasPackageFailed(pkg string) bool {
	return t.outcomes[testID{pkg: pkg}] == "fail"
}

// hasCrashed reports whether a package failed although none of its tests did.
func (t *tally) hasCrashed(pkg string) bool {
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
