// Package leaktest makes a package's tests fail if they leak symmem's memory or file descriptors.
// In builds with the tag invariants, it also detects leaked address reservations and reports the
// code that made each mapping.
package leaktest

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"symmem/internal/sys"
)

// Tests are the tests of a package, such as a *testing.M.
type Tests interface{ Run() int }

// Watch returns Tests whose Run method runs the given tests. If all tests pass but leave resources
// open that were not open when Watch was called, Run prints these resources and returns 1.
func Watch(tests Tests) Tests { return &watchedTests{tests: tests, before: openResources()} }

type watchedTests struct {
	tests  Tests
	before map[string]int // open when Watch was called
}

// Run runs the tests and then checks for leaks.
func (w *watchedTests) Run() int {
	code := w.tests.Run()
	if code != 0 {
		return code
	}
	leaks := w.leaks()
	for _, resource := range leaks {
		fmt.Fprintln(os.Stderr, "the tests have not closed:", resource)
	}
	return min(len(leaks), 1)
}

const (
	// patience limits the wait until all resources are closed. A server, for example, may notice
	// only after the tests that a connection was closed.
	patience     = 10 * time.Second
	pollInterval = 10 * time.Millisecond
)

// leaks returns the resources that are open now but were not open when Watch was called. It waits
// up to patience until there are none.
func (w *watchedTests) leaks() []string {
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for begin := time.Now(); ; <-ticks.C {
		var leaks []string
		for resource, count := range openResources() {
			for range count - w.before[resource] {
				leaks = append(leaks, resource)
			}
		}
		if len(leaks) == 0 || time.Since(begin) > patience {
			slices.Sort(leaks)
			return leaks
		}
	}
}

func openResources() map[string]int {
	resources := map[string]int{}
	for _, origin := range sys.OpenMappings() {
		resources["a mapping of "+origin]++
	}
	countDescriptors(resources)
	countMappings(resources)
	return resources
}

// countDescriptors counts the open file descriptors.
func countDescriptors(resources map[string]int) {
	const folder = "/proc/self/fd"
	entries, err := os.ReadDir(folder)
	if err != nil {
		resources[err.Error()]++
		return
	}
	for _, e := range entries {
		target, err := os.Readlink(folder + "/" + e.Name())
		if err != nil || strings.HasPrefix(target, "/proc/") ||
			strings.HasPrefix(target, "anon_inode:[event") {
			continue // opened by ReadDir or by the Go runtime
		}
		resources[fmt.Sprintf("descriptor %s, %s", e.Name(), target)]++
	}
}

func countMappings(resources map[string]int) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		resources[err.Error()]++
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 5 &&
			strings.HasPrefix(fields[5], "/memfd:symmem") {
			resources[fmt.Sprintf("memory of %s at %s", fields[5], fields[0])]++
		}
	}
}
