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

// TestRunner is usually a *testing.M.
type TestRunner interface{ Run() int }

// Watch returns a TestRunner that runs tests. If all tests pass but leave resources open that were
// not open when Watch was called, Run prints these resources and returns 1.
func Watch(tests TestRunner) TestRunner {
	return &leakCheckedTests{tests: tests, openBefore: countResources()}
}

type leakCheckedTests struct {
	tests      TestRunner
	openBefore map[string]int // number of each resource
}

// Run runs the tests and then checks for leaks.
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

const (
	// closeTimeout is long, because a server may notice the end of a connection late.
	closeTimeout = 10 * time.Second
	pollInterval = 10 * time.Millisecond
)

// findLeaks waits up to closeTimeout until no new resource is open.
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

func countResources() map[string]int {
	resources := map[string]int{}
	for _, origin := range sys.OpenMappings() {
		resources["a mapping created by this stack:\n"+origin]++
	}
	countDescriptors(resources)
	countMappings(resources)
	return resources
}

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
