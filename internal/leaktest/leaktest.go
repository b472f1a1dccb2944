// Package leaktest fails tests that leak file descriptors or mappings of symmem's memory files.
// With the build tag "invariants", it finds all mappings that package sys has created.
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

// TestRunner runs tests and returns the exit code, as *testing.M does.
type TestRunner interface{ Run() int }

// Watch returns a TestRunner that fails if the tests leave resources open. Call it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(leaktest.Watch(m).Run()) }
func Watch(tests TestRunner) TestRunner {
	return &leakCheckedTests{tests: tests, openBefore: countResources()}
}

type leakCheckedTests struct {
	tests      TestRunner
	openBefore map[string]int // from countResources, before the tests
}

// Run returns the exit code of the tests. If they pass but leak, it prints the leaks and returns 1.
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
	closeTimeout = 10 * time.Second // for goroutines that close resources after a test
	pollInterval = 10 * time.Millisecond
)

// findLeaks waits up to closeTimeout for resources to be closed, and returns those still open.
func (l *leakCheckedTests) findLeaks() []string {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	begin := time.Now()
	for {
		leaks := l.currentLeaks()
		if len(leaks) == 0 || time.Since(begin) > closeTimeout {
			return leaks
		}

		<-ticker.C
	}
}

func (l *leakCheckedTests) currentLeaks() []string {
	var leaks []string
	for resource, count := range countResources() {
		leakCount := max(0, count-l.openBefore[resource])
		for range leakCount {
			leaks = append(leaks, resource)
		}
	}

	slices.Sort(leaks)
	return leaks
}

// countResources counts the open resources of the process. The keys are descriptions to print.
func countResources() map[string]int {
	resources := map[string]int{}
	for _, mapping := range sys.OpenMappings() { // empty without the build tag "invariants"
		resources["a mapping of "+mapping]++
	}

	countDescriptors(resources)
	countMemoryFiles(resources)
	return resources
}

// countDescriptors adds the open file descriptors to resources, except those of the Go runtime.
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
			continue // closed, such as the descriptor of ReadDir
		}

		isInProc := strings.HasPrefix(target, "/proc/")
		isOfRuntime := strings.HasPrefix(target, "anon_inode:[event") // [eventpoll] or [eventfd]
		if isInProc || isOfRuntime {
			continue
		}

		resources[fmt.Sprintf("descriptor %s, %s", e.Name(), target)]++
	}
}

// countMemoryFiles adds the mappings of symmem's memory files to resources.
func countMemoryFiles(resources map[string]int) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		resources[err.Error()]++ // reported as a leak
		return
	}
	defer f.Close()
	const fileIndex = 5 // Fields: addresses, access, offset, device, inode, file.
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= fileIndex {
			continue // anonymous memory
		}

		addresses := fields[0]
		file := fields[fileIndex]
		if strings.HasPrefix(file, "/memfd:symmem") {
			resources[fmt.Sprintf("memory of %s at %s", file, addresses)]++
		}
	}
}
