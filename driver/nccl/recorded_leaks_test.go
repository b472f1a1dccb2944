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

func groupCount() int {
	if n, err := strconv.Atoi(os.Getenv("SYMMEM_TEST_GROUPS")); err == nil {
		return n
	}

	return 40
}

// closing is a way to close a group whose calls are in graphs.
type closing struct {
	mustAbort    bool // abort the group before Close
	destroyFirst bool // destroy the graphs before Close
}

var closings = []closing{
	{mustAbort: true, destroyFirst: true},
	{mustAbort: false, destroyFirst: true},
	{mustAbort: true, destroyFirst: false},
	{mustAbort: false, destroyFirst: false},
}

// Groups whose calls are in graphs of another library leak neither resources of the process nor GPU
// memory.
func TestCapturedGroupsLeaveNothingBehind(t *testing.T) {
	groups := groupCount()
	w := newGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	w.must(func(m *testRank) (err error) {
		const elements = 600_000
		sums[m.rank], err = m.newRepeatedSum(w, windowName, elements)
		return err
	})
	closeGroups := func(n int) {
		for i := range n {
			w.captureAndClose(sums, closings[i%len(closings)])
		}
	}
	closeGroups(len(closings)) // the first groups also allocate memory that is kept
	countsBefore := countResources(t)
	freeBefore := w.freeMemory()
	closeGroups(groups)
	checkResources(t, countsBefore, groups)
	const groupLimit = 1 << 20
	bytesLimit := int64(groups) * groupLimit
	for r, freeNow := range w.freeMemory() {
		leaked := freeBefore[r] - freeNow
		if leaked >= bytesLimit {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked,
				bytesLimit)
		}
	}
}

// checkResources fails the test if the groups leaked resources. It first waits for temporary ones.
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

// captureAndClose connects a group, captures its calls in graphs of another library, and closes the
// group and its graphs in the given way.
func (w *testGroup) captureAndClose(sums [2]*repeatedSum, how closing) {
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
		if how.destroyFirst {
			destroyErr = destroyGraphs(graphs[m.rank])
		}

		if how.mustAbort {
			m.group.Abort(errAborted)
		}

		if !how.destroyFirst {
			return m.closeBeforeGraphs(graphs[m.rank], how.mustAbort)
		}

		closeErr := m.closeGroup()
		if how.mustAbort {
			closeErr = nil // the fault
		}

		return errors.Join(destroyErr, closeErr)
	})
}

// closeBeforeGraphs closes the rank's group, and then replays and destroys its graphs. closeGroup
// would wait until they are destroyed. Closing an aborted group may fail.
func (m *testRank) closeBeforeGraphs(graphs []*foreignStream, isAborted bool) error {
	c := m.group.(*communicator)
	err := m.regions[0].window.Deregister()
	m.regions[0].window = nil
	m.group = nil
	closeErr := c.Close()
	if !isAborted {
		err = errors.Join(err, closeErr)
	}

	<-c.stages.memoryFreed // except what the graphs use
	for _, g := range graphs {
		err = errors.Join(err, g.replay())
	}

	err = errors.Join(err, destroyGraphs(graphs))
	return errors.Join(err, awaitTeardownResult(c))
}

func destroyGraphs(graphs []*foreignStream) (err error) {
	for _, g := range graphs {
		err = errors.Join(err, g.destroy())
		err = errors.Join(err, g.closeStream())
	}

	return err
}

func countResources(t *testing.T) map[string]int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}

	return map[string]int{
		"descriptors": countDescriptors(t),
		"goroutines":  runtime.NumGoroutine(),
		"mappings":    strings.Count(string(maps), "\n"),
	}
}
