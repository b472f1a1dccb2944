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

// closingOrder selects what a rank does before it closes a group whose calls are in graphs.
type closingOrder struct {
	abortsFirst   bool // aborts the group
	destroysFirst bool // destroys the graphs
}

var closingOrders = []closingOrder{
	{abortsFirst: true, destroysFirst: true},
	{abortsFirst: false, destroysFirst: true},
	{abortsFirst: true, destroysFirst: false},
	{abortsFirst: false, destroysFirst: false},
}

// Groups whose calls are in graphs of another library leak no GPU memory, file descriptors,
// goroutines or mappings.
func TestCapturedGroupsLeaveNothingBehind(t *testing.T) {
	groups := groupCount()
	g := newGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	g.must(func(r *testRank) (err error) {
		const elements = 600_000
		sums[r.rank], err = r.newRepeatedSum(g, windowName, elements)
		return err
	})
	closeGroups := func(n int) {
		for i := range n {
			g.captureAndClose(sums, closingOrders[i%len(closingOrders)])
		}
	}
	closeGroups(len(closingOrders)) // the first groups also allocate memory that the process keeps
	countsBefore := countResources(t)
	freeBefore := g.freeMemory()
	closeGroups(groups)
	checkResources(t, countsBefore, groups)
	const limitPerGroup = 1 << 20 // bytes; a group allocates more
	bytesLimit := int64(groups) * limitPerGroup
	for rank, freeNow := range g.freeMemory() {
		leaked := freeBefore[rank] - freeNow
		if leaked >= bytesLimit {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", rank, groups, leaked,
				bytesLimit)
		}
	}
}

// checkResources waits until the groups have released their resources.
func checkResources(t *testing.T, countsBefore map[string]int, groups int) {
	t.Helper()
	leakLimit := min(groups, 20) // a few resources may be in use without a leak
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

// captureAndClose connects a group, captures its calls in graphs of another library, and closes
// both in the given order.
func (g *testGroup) captureAndClose(sums [2]*repeatedSum, order closingOrder) {
	g.t.Helper()
	g.regroup(0, 1)
	graphs := make([][]*foreignStream, 2) // by rank
	g.must(func(r *testRank) error {
		sum := sums[r.rank]
		if err := r.register(g, sum.region, windowName); err != nil {
			return err
		}

		for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
			graph, err := r.captureForeign(sum.call(path))
			if err != nil {
				return err
			}

			graphs[r.rank] = append(graphs[r.rank], graph)
			if err := graph.replayAndWait(sum); err != nil {
				return err
			}
		}

		return nil
	})
	g.must(func(r *testRank) error {
		if order.destroysFirst {
			return r.closeAfterGraphs(graphs[r.rank], order.abortsFirst)
		}

		return r.closeBeforeGraphs(graphs[r.rank], order.abortsFirst)
	})
}

// closeAfterGraphs destroys the rank's graphs, and then closes its group.
func (r *testRank) closeAfterGraphs(graphs []*foreignStream, mustAbort bool) error {
	err := destroyGraphs(graphs)
	if mustAbort {
		r.group.Abort(errAborted)
		_ = r.closeGroup() // returns the fault
		return err
	}

	return errors.Join(err, r.closeGroup())
}

// closeBeforeGraphs closes the rank's group, and then replays and destroys the graphs. closeGroup
// would wait for the graphs.
func (r *testRank) closeBeforeGraphs(graphs []*foreignStream, mustAbort bool) error {
	if mustAbort {
		r.group.Abort(errAborted)
	}

	c := r.group.(*communicator)
	err := r.regions[0].window.Deregister()
	r.regions[0].window = nil
	r.group = nil
	closeErr := c.Close()
	if !mustAbort { // otherwise, closeErr is the fault
		err = errors.Join(err, closeErr)
	}

	<-c.stages.memoryFreed // except memory that the graphs use
	for _, graph := range graphs {
		err = errors.Join(err, graph.replay())
	}

	err = errors.Join(err, destroyGraphs(graphs))
	return errors.Join(err, awaitTeardownResult(c))
}

func destroyGraphs(graphs []*foreignStream) (err error) {
	for _, graph := range graphs {
		err = errors.Join(err, graph.destroy())
		err = errors.Join(err, graph.closeStream())
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
