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

// TestCapturedGroupsLeaveNothingBehind checks that groups leak no memory, file descriptors,
// mappings or goroutines if their calls are captured in graphs of another library. The environment
// variable SYMMEM_TEST_GROUPS sets the number of groups.
func TestCapturedGroupsLeaveNothingBehind(t *testing.T) {
	groups := 40
	if n, err := strconv.Atoi(os.Getenv("SYMMEM_TEST_GROUPS")); err == nil {
		groups = n
	}

	w := newGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	w.must(func(m *testRank) (err error) {
		const elements = 600_000
		sums[m.rank], err = m.newRepeatedSum(w, windowName, elements)
		return err
	})
	closeGroups := func(n int) { // in turn with each of the four combinations of the arguments
		for i := range n {
			mustAbort, destroyFirst := i%2 == 0, i/2%2 == 0
			w.captureAndClose(sums, mustAbort, destroyFirst)
		}
	}
	closeGroups(4) // the first groups also allocate memory that is kept
	countsBefore, freeBefore := countResources(t), w.freeMemory()
	closeGroups(groups)
	// A leak in every group adds at least one resource for each group, but a few resources may be
	// in use for a while without a leak.
	leakLimit := min(groups, 20)
	var countsNow map[string]int
	haveEnded := func() (bool, error) {
		countsNow = countResources(t)
		for resource, count := range countsNow {
			if count-countsBefore[resource] >= leakLimit {
				return false, nil
			}
		}

		return true, nil
	}
	if err := gpu.PollQueryFor(20*time.Second, haveEnded); err != nil {
		t.Errorf("resources after %d groups = %v, want less than %d more than %v", groups, countsNow,
			leakLimit, countsBefore)
	}

	bytesLimit := int64(groups) << 20 // 1 MiB for each group
	for r, freeNow := range w.freeMemory() {
		if leaked := freeBefore[r] - freeNow; leaked >= bytesLimit {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked,
				bytesLimit)
		}
	}
}

// captureAndClose connects a group, captures its calls in graphs of another library, closes the
// group, and destroys the graphs. If mustAbort is set, it aborts the group before it closes it. If
// destroyFirst is set, it destroys the graphs before it closes the group, and otherwise after
// that.
func (w *testGroup) captureAndClose(sums [2]*repeatedSum, mustAbort, destroyFirst bool) {
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
		if destroyFirst {
			err := destroyGraphs(graphs[m.rank])
			if mustAbort {
				m.group.Abort(errAborted)
			}

			closeErr := m.closeGroup()
			if mustAbort {
				closeErr = nil // the fault
			}

			return errors.Join(err, closeErr)
		}

		if mustAbort {
			m.group.Abort(errAborted)
		}

		return m.closeBeforeGraphs(graphs[m.rank], mustAbort)
	})
}

// closeBeforeGraphs closes the rank's group while it has graphs, and then replays and destroys the
// graphs. It does not use closeGroup, which would wait for the destruction of the graphs. If
// isAborted is set, the error of Close is expected.
func (m *testRank) closeBeforeGraphs(graphs []*foreignStream, isAborted bool) error {
	c := m.group.(*communicator)
	err := m.regions[0].window.Deregister()
	m.regions[0].window, m.group = nil, nil
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
		"descriptors": countDescriptors(t), "goroutines": runtime.NumGoroutine(),
		"mappings": strings.Count(string(maps), "\n"),
	}
}
