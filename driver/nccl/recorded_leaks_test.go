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

// TestCapturedGroupsLeaveNothingBehind checks for leaks after calls of groups were captured as
// another library would. SYMMEM_TEST_GROUPS sets the number of groups.
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
	for i := range 4 { // the first groups also allocate memory that is kept
		w.captureAndClose(sums, i)
	}
	before, free := countResources(t), w.freeMemory()
	for i := range groups {
		w.captureAndClose(sums, i)
	}
	var now map[string]int
	err := gpu.PollQueryFor(20*time.Second, func() (bool, error) {
		now = countResources(t)
		for resource, count := range now {
			if count-before[resource] >= min(groups, 20) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("resources after %d groups = %v, want about %v", groups, now, before)
	}
	for r, now := range w.freeMemory() {
		if leaked := free[r] - now; leaked >= int64(groups)<<20 {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked,
				int64(groups)<<20)
		}
	}
}

// captureAndClose connects a group, captures its calls in graphs of another library, closes the
// group, and destroys the graphs. i selects whether the group is also aborted, and whether the
// graphs are destroyed first.
func (w *testGroup) captureAndClose(sums [2]*repeatedSum, i int) {
	abort, destroyFirst := i%2 == 0, i/2%2 == 0
	w.regroup(0, 1)
	graphs := make([][]*foreignStream, 2)
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
		var err error
		if destroyFirst {
			err = destroy()
		}
		if abort {
			c.Abort(errAborted)
		}
		if destroyFirst {
			closeErr := m.closeGroup()
			if abort {
				closeErr = nil
			}
			return errors.Join(err, closeErr)
		}
		err = m.regions[0].window.Deregister()
		m.regions[0].window, m.group = nil, nil
		if closeErr := c.Close(); !abort {
			err = errors.Join(err, closeErr)
		}
		<-c.stages.memoryFreed
		for _, g := range graphs[m.rank] {
			err = errors.Join(err, g.replay())
		}
		return errors.Join(err, destroy(), teardownError(c))
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
