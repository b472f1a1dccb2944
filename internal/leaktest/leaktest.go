// Package leaktest makes tests fail if they leak file descriptors or symmem's shared memory. With
// the build tag "invariants", it finds leaked address reservations too.
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

// TestRunner runs tests and returns the exit code. It is usually a *testing.M.
type TestRunner interface{ Run() int }

// Watch returns a TestRunner that runs tests. If all tests pass but leave resources open that were
// not open when Watch was called, Run prints these resources and returns 1.
func Watch(tests TestRunner) TestRunner {
	return &leakCheckedTests{tests: tests, openBefore: countResources()}
}

// leakCheckedTests is the TestRunner that Watch returns.
type leakCheckedTests struct {
	tests      TestRunner
	openBefore map[string]int // countResources before the tests
}

// Run runs the tests and, if all pass, checks for leaks. It returns 1 if there are any.
func (l *leakCheckedTests) Run() int {
	code := l.tests.Run()
	if code != 0 {
		return code
	}
	leaks := l.findLeaks()
	for _, resource := range leaks {
		fmt.Fprintln(os.Stderr, "the tests have not closed:", resource)
	}
	return min(len(leaks), 1)
}

// The time in which resources must be closed after the tests, and the interval of the checks. The
// time is long, because a server may notice the end of a connection late.
const (
	closeTimeout = 10 * time.Second
	pollInterval = 10 * time.Millisecond
)

// findLeaks returns descriptions of the resources that are open, but were not open before the
// tests. It waits up to closeTimeout until there are none.
func (l *leakCheckedTests) findLeaks() []string {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for begin := time.Now(); ; <-ticker.C {
		var leaks []string
		for resource, count := range countResources() {
			for range count - l.openBefore[resource] {
				leaks = append(leaks, resource)
			}
		}
		if len(leaks) == 0 || time.Since(begin) > closeTimeout {
			slices.Sort(leaks)
			return leaks
		}
	}
}

// countResources returns the number of open resources by description.
func countResources() map[string]int {
	resources := map[string]int{}
	for _, origin := range sys.OpenMappings() {
		resources["a mapping created by this stack:\n"+origin]++
	}
	countDescriptors(resources)
	countMappings(resources)
	return resources
}

// countDescriptors adds this process's file descriptors to resources, except those of the Go
// runtime.
func countDescriptors(resources map[string]int) {
	const folder = "/proc/self/fd"
	entries, err := os.ReadDir(folder)
	if err != nil {
		resources[err.Error()]++ // reported as a leak
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

// countMappings adds the mappings of symmem's shared memory to resources.
func countMappings(resources map[string]int) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		resources[err.Error()]++
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		const addresses, file = 0, 5 // indices of fields in /proc/self/maps
		fields := strings.Fields(lines.Text())
		if len(fields) > file && strings.HasPrefix(fields[file], "/memfd:symmem") {
			resources[fmt.Sprintf("memory of %s at %s", fields[file], fields[addresses])]++
		}
	}
}
