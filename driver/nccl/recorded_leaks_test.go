package nccl

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// A group can leak resources of this process (file descriptors, goroutines and mappings) and GPU
// memory. The test makes 40 groups one after another, whose calls another library captures in
// graphs, and counts the resources before and after. With a leak in each group, there would be at
// least 40 more of one kind.

// groupCount returns the number of groups. The variable SYMMEM_TEST_GROUPS can set it.
func groupCount() int {
	if n, err := strconv.Atoi(os.Getenv("SYMMEM_TEST_GROUPS")); err == nil {
		return n
	}

	return 40
}

// TestCapturedGroupsLeaveNothingBehind checks that groups leak nothing if their calls are captured
// in graphs of another library.
func TestCapturedGroupsLeaveNothingBehind(t *testing.T) {
	groups := groupCount()
	w := newGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	w.must(func(m *testRank) (err error) {
		const elements = 600_000
		sums[m.rank], err = m.newRepeatedSum(w, windowName, elements)
		return err
	})
	closeGroups := func(n int) { // uses the four combinations of mustAbort and destroyFirst in turn
		for i := range n {
			mustAbort := i%2 == 0
			destroyFirst := i/2%2 == 0
			w.captureAndClose(sums, mustAbort, destroyFirst)
		}
	}
	closeGroups(4) // the first groups also allocate memory that is kept
	countsBefore := countResources(t)
	freeBefore := w.freeMemory()
	closeGroups(groups)
	checkResources(t, countsBefore, groups)
	bytesLimit := int64(groups) << 20 // 1 MiB for each group
	for r, freeNow := range w.freeMemory() {
		leaked := freeBefore[r] - freeNow
		if leaked >= bytesLimit {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked,
				bytesLimit)
		}
	}
}

// checkResources fails the test if there are many more resources than before the given number of
// groups. It waits for resources that are in use for a while.
func checkResources(t *testing.T, countsBefore map[string]int, groups int) {
	t.Helper()
	// A few resources may stay in use without a leak.
	leakLimit := min(groups, 20)
	var countsNow map[string]int
	areFew := func() (bool, error) {
		countsNow = countResources(t)
		for resource, count := range countsNow {
			if count-countsBefore[resource] >= leakLimit {
				return false, nil
			}
		}

		return true, nil
	}
	if err := gpu.PollQueryFor(20*time.Second, areFew); err != nil {
		t.Errorf("resources after %d groups = %v, want less than %d more than %v", groups, countsNow,
			leakLimit, countsBefore)
	}
}

// captureAndClose connects a group, captures its calls in graphs of another library, closes the
// group, and destroys the graphs.
//
// If mustAbort is set, it aborts the group before it closes it. If destroyFirst is set, it destroys
// the graphs before it closes the group, and otherwise after that.
func (w *testGroup) captureAndClose(sums [2]*repeatedSum, mustAbort, destroyFirst bool) {
	w.t.Helper()
	w.regroup(0, 1)
	graphs := make([][]*foreignStream, 2) // by rank
	w.must(func(m *testRank) error {
		p := sums[m.rank]
		if err := m.register(w, p.region, windowName); err != nil {
			return err
		}

		for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
			g, err := m.captureForeign(p.call(path))
			if err != nil {
				return err
			}

			graphs[m.rank] = append(graphs[m.rank], g)
			if err := g.replayAndWait(p); err != nil {
				return err
			}
		}

		return nil
	})
	w.must(func(m *testRank) error {
		var destroyErr error
		if destroyFirst {
			destroyErr = destroyGraphs(graphs[m.rank])
		}

		if mustAbort {
			m.group.Abort(errAborted)
		}

		if !destroyFirst {
			return m.closeBeforeGraphs(graphs[m.rank], mustAbort)
		}

		closeErr := m.closeGroup()
		if mustAbort {
			closeErr = nil // the fault
		}

		return errors.Join(destroyErr, closeErr)
	})
}

// closeBeforeGraphs closes the rank's group while it has graphs, and then replays and destroys the
// graphs. It does not use closeGroup, which would wait for the destruction of the graphs. If
// isAborted is set, the error of Close is expected.
func (m *testRank) closeBeforeGraphs(graphs []*foreignStream, isAborted bool) error {
	c := m.group.(*communicator)
	err := m.regions[0].window.Deregister()
	m.regions[0].window = nil
	m.group = nil
	closeErr := c.Close()
	if !isAborted {
		err = errors.Join(err, closeErr)
	}

	<-c.stages.memoryFreed // everything except what the graphs use
	for _, g := range graphs {
		err = errors.Join(err, g.replay())
	}

	err = errors.Join(err, destroyGraphs(graphs))
	return errors.Join(err, awaitTeardownResult(c))
}

// destroyGraphs destroys graphs and their streams.
func destroyGraphs(graphs []*foreignStream) (err error) {
	for _, g := range graphs {
		err = errors.Join(err, g.destroy())
		err = errors.Join(err, g.closeStream())
	}

	return err
}

// countResources returns the numbers of resources of this process that a group may leak.
func countResources(t *testing.T) map[string]int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}

	return map[string]int{
		"descriptors": countDescriptors(t),
		"goroutines":  runtime.NumGoroutine(),
		"mappings":    strings.Count(string(maps), "\n"), // a line describes each mapping
	}
}
