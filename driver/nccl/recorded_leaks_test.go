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

// TestCapturedGroupsLeaveNothingBehind connects groups whose calls another library captures, fails
// or closes them, and destroys the graphs before or after that, with replays in between. No
// descriptors, mappings, goroutines or memory may leak. SYMMEM_TEST_GROUPS sets the number of
// groups.
func TestCapturedGroupsLeaveNothingBehind(t *testing.T) {
	groups := 40
	if n, err := strconv.Atoi(os.Getenv("SYMMEM_TEST_GROUPS")); err == nil {
		groups = n
	}
	w := newGroup(t, 2, time.Minute)
	var powers [2]*power
	w.must(func(m *testRank) (err error) {
		powers[m.rank], err = m.newPower(w, 1, 600_000)
		return err
	})
	for i := range 4 { // the first groups also allocate memory that is kept
		w.captureAndEnd(powers, i)
	}
	before, free := remains(t), w.free()
	for i := range groups {
		w.captureAndEnd(powers, i)
	}
	var now map[string]int
	err := gpu.Within(20*time.Second, func() (bool, error) {
		now = remains(t)
		for what, count := range now {
			if count-before[what] >= min(groups, 20) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("%v before %d groups, %v afterwards", before, groups, now)
	}
	for r, now := range w.free() {
		if lost := free[r] - now; lost >= int64(groups)<<20 {
			t.Errorf("rank %d: %d bytes have leaked", r, lost)
		}
	}
}

// captureAndEnd connects a group, captures calls of it, and ends both in one of four ways.
func (w *testGroup) captureAndEnd(powers [2]*power, i int) {
	fails, first := i%2 == 0, i/2%2 == 0
	w.regroup(0, 1)
	graphs := make([][]*owned, 2)
	w.must(func(m *testRank) error {
		p := powers[m.rank]
		if err := m.register(w, p.stretch, 1); err != nil {
			return err
		}
		for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
			g, err := m.capturedBy(p.call(path))
			if err != nil {
				return err
			}
			graphs[m.rank] = append(graphs[m.rank], g)
			if err := g.replayed(p); err != nil {
				return err
			}
		}
		return nil
	})
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		destroy := func() (err error) {
			for _, g := range graphs[m.rank] {
				err = errors.Join(err, g.destroy(), g.leave())
			}
			return err
		}
		var err error
		if first {
			err = destroy()
		}
		if fails {
			c.Abort(errors.New("the group ends"))
		}
		if first {
			return errors.Join(err, ignoring(m.leave(), fails))
		}
		err = m.owned[0].window.Deregister()
		m.owned[0].window, m.group = nil, nil
		if closed := c.Close(); !fails {
			err = errors.Join(err, closed)
		}
		<-c.stages.released
		for _, g := range graphs[m.rank] {
			err = errors.Join(err, g.replay())
		}
		return errors.Join(err, destroy(), torn(c))
	})
}

// ignoring returns err, or nil if a fault is expected.
func ignoring(err error, fault bool) error {
	if fault {
		return nil
	}
	return err
}

// remains counts resources that a group could leak.
func remains(t *testing.T) map[string]int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]int{
		"descriptors": open(t), "goroutines": runtime.NumGoroutine(),
		"mappings": strings.Count(string(maps), "\n"),
	}
}
