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
	var sums [2]*repeatedSum
	w.must(func(m *testRank) (err error) {
		sums[m.rank], err = m.newRepeatedSum(w, 1, 600_000)
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
	maxMore := min(groups, 20)
	var countsNow map[string]int
	haveEnded := func() (bool, error) {
		countsNow = countResources(t)
		for resource, count := range countsNow {
			if count-countsBefore[resource] >= maxMore {
				return false, nil
			}
		}
		return true, nil
	}
	if err := gpu.PollQueryFor(20*time.Second, haveEnded); err != nil {
		t.Errorf("resources after %d groups = %v, want less than %d more than %v", groups, countsNow,
			maxMore, countsBefore)
	}
	limit := int64(groups) << 20
	for r, freeNow := range w.freeMemory() {
		if leaked := freeBefore[r] - freeNow; leaked >= limit {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked, limit)
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
		if err := m.register(w, p.region, 1); err != nil {
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
		c := m.group.(*communicator)
		destroy := func() (err error) {
			for _, g := range graphs[m.rank] {
				err = errors.Join(err, g.destroy(), g.closeStream())
			}
			return err
		}
		if destroyFirst {
			err := destroy()
			if mustAbort {
				c.Abort(errAborted)
			}
			closeErr := m.closeGroup()
			if mustAbort {
				closeErr = nil // the fault
			}
			return errors.Join(err, closeErr)
		}
		if mustAbort {
			c.Abort(errAborted)
		}
		err := m.regions[0].window.Deregister()
		m.regions[0].window, m.group = nil, nil
		closeErr := c.Close()
		if mustAbort {
			closeErr = nil // the fault
		}
		err = errors.Join(err, closeErr)
		<-c.stages.memoryFreed
		for _, g := range graphs[m.rank] {
			err = errors.Join(err, g.replay())
		}
		return errors.Join(err, destroy(), awaitTeardownResult(c))
	})
}

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
