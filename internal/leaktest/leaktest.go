// Package leaktest fails a package's tests if they leave something open: descriptors (memory files,
// sockets, processes) and mappings of symmem's memory. In builds with the tag invariants it also
// finds reserved addresses, and says where a mapping was made.
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

// Tests are the tests of a package: a *testing.M.
type Tests interface{ Run() int }

// Watch returns tests which fail, after all have run well, if something is open that was not when
// Watch was called.
func Watch(tests Tests) Tests { return &watched{tests: tests, before: open()} }

type watched struct {
	tests  Tests
	before map[string]int
}

// Run runs the tests and looks for what they have left.
func (w *watched) Run() int {
	code := w.tests.Run()
	if code != 0 {
		return code
	}
	left := w.left()
	for _, what := range left {
		fmt.Fprintln(os.Stderr, "the tests have left open:", what)
	}
	return min(len(left), 1)
}

const (
	// patience is how long what is being closed, by peers and servers that notice the end of a
	// connection, may take; look is the time between two looks.
	patience = 10 * time.Second
	look     = 10 * time.Millisecond
)

// left lists what is open and was not before, once nothing of it goes away any more.
func (w *watched) left() []string {
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	for begin := time.Now(); ; <-ticks.C {
		var left []string
		for what, count := range open() {
			for range count - w.before[what] {
				left = append(left, what)
			}
		}
		if len(left) == 0 || time.Since(begin) > patience {
			slices.Sort(left)
			return left
		}
	}
}

// open counts what this process has open, by what it is.
func open() map[string]int {
	all := map[string]int{}
	for _, what := range sys.OpenMappings() {
		all["a mapping of "+what]++
	}
	descriptors(all)
	mappings(all)
	return all
}

// descriptors counts the open files, but for those that the Go runtime opens at some time.
func descriptors(all map[string]int) {
	const folder = "/proc/self/fd"
	entries, err := os.ReadDir(folder)
	if err != nil {
		all[err.Error()]++
		return
	}
	for _, e := range entries {
		target, err := os.Readlink(folder + "/" + e.Name())
		if err != nil || strings.HasPrefix(target, "/proc/") ||
			strings.HasPrefix(target, "anon_inode:[event") {
			continue // the folder itself, which is closed by now, or the runtime's poller
		}
		all[fmt.Sprintf("descriptor %s, %s", e.Name(), target)]++
	}
}

// mappings counts the mappings of symmem's memory files.
func mappings(all map[string]int) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		all[err.Error()]++
		return
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 5 &&
			strings.HasPrefix(fields[5], "/memfd:symmem") {
			all[fmt.Sprintf("memory of %s at %s", fields[5], fields[0])]++
		}
	}
}
