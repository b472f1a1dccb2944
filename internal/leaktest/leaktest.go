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

// Watch returns a TestRunner that runs the tests and then fails if they have leaked a resource. Use
// it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(leaktest.Watch(m).Run()) }
//
// A resource is a leak if it was not open when Watch was called, and is still open after the tests.
func Watch(tests TestRunner) TestRunner {
	return &leakCheckedTests{tests: tests, openBefore: countResources()}
}

// leakCheckedTests is the TestRunner that Watch returns.
type leakCheckedTests struct {
	tests      TestRunner
	openBefore map[string]int // result of countResources before the tests
}

// Run runs the tests. If all pass, it prints the leaks and returns 1 if there are any. If a test
// fails, Run returns the exit code of the tests.
func (l *leakCheckedTests) Run() int {
	code := l.tests.Run()
	if code != 0 {
		return code
	}

	leaks := l.findLeaks()
	for _, resource := range leaks {
		fmt.Fprintln(os.Stderr, "the tests have not closed:", resource)
	}

	if len(leaks) > 0 {
		return 1
	}

	return 0
}

const (
	// closeTimeout is the time in which resources must be closed after the tests. It is long,
	// because a server may notice the end of a connection late.
	closeTimeout = 10 * time.Second
	// pollInterval is the time between two checks.
	pollInterval = 10 * time.Millisecond
)

// findLeaks returns descriptions of the resources that are open, but were not open before the
// tests. It waits up to closeTimeout until there are none.
func (l *leakCheckedTests) findLeaks() []string {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	begin := time.Now()
	for {
		leaks := l.currentLeaks()
		if len(leaks) == 0 || time.Since(begin) > closeTimeout {
			return leaks
		}

		<-ticker.C // no event reports that the last resource has been closed
	}
}

// currentLeaks is findLeaks without waiting.
func (l *leakCheckedTests) currentLeaks() []string {
	var leaks []string
	for resource, count := range countResources() {
		leakCount := count - l.openBefore[resource] // negative if the tests have closed some
		for range leakCount {
			leaks = append(leaks, resource)
		}
	}

	slices.Sort(leaks)
	return leaks
}

// countResources returns the number of open resources with each description.
func countResources() map[string]int {
	resources := map[string]int{}
	for _, mapping := range sys.OpenMappings() { // empty without the build tag "invariants"
		resources["a mapping created by this stack:\n"+mapping]++
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
		if err != nil {
			continue // ReadDir has closed its descriptor meanwhile.
		}

		isInProc := strings.HasPrefix(target, "/proc/") // also opened by ReadDir
		isOfRuntime := strings.HasPrefix(target, "anon_inode:[event")
		if isInProc || isOfRuntime {
			continue
		}

		resources[fmt.Sprintf("descriptor %s, %s", e.Name(), target)]++
	}
}

// countMappings adds the mappings of symmem's shared memory to resources.
func countMappings(resources map[string]int) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		resources[err.Error()]++ // reported as a leak
		return
	}
	defer f.Close()
	// The fields of a line are: addresses, access, offset, device, inode, file.
	const fileIndex = 5
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= fileIndex {
			continue // memory without a file
		}

		addresses := fields[0]
		file := fields[fileIndex]
		if strings.HasPrefix(file, "/memfd:symmem") {
			resources[fmt.Sprintf("memory of %s at %s", file, addresses)]++
		}
	}
}
