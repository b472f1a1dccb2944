package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// testGroup runs a world of ranks. Each rank is a goroutine and uses one GPU. All or some of the
// ranks form a group.
type testGroup struct {
	t      *testing.T
	opened []*testRank
	// ranks holds the members of the group, indexed by group rank.
	ranks  []*testRank
	groups int // number of groups connected so far
	// hasAdditiveSums is set if new repeated sums are to be additive.
	hasAdditiveSums bool
	// formula is the formula of the next group to be connected.
	formula driver.Formula
}

type testRank struct {
	number int // in the world
	device *Device
	arena  driver.Arena
	mapped int64
	stream driver.Stream

	rank  int // in the group
	group driver.Communicator
	// pinned is page-locked host memory.
	pinned  []byte
	regions []*region
	// launched counts the launches by kernel.
	launched map[cuda.Function]int
	// graphs are closed before the group, because its teardown waits for graphs with its calls.
	graphs []driver.Graph
	// others holds additional streams.
	others []*stream.Stream
}

type region struct {
	segment driver.Segment
	window  driver.Window // nil unless the segment is registered with the group
}

// pinnedBytes limits how much device memory is read at a time.
const pinnedBytes = 16 << 20

// newTestGroup opens n ranks. It skips the test if the machine has fewer GPUs.
func newTestGroup(t *testing.T, n int, timeout time.Duration) *testGroup {
	t.Helper()
	needDevices(t, n)
	w := &testGroup{t: t}
	for number := range n {
		w.opened = append(w.opened, newTestRank(number))
	}

	w.ranks = w.opened
	store := &drivertest.Store{}
	t.Cleanup(func() { w.must(func(m *testRank) error { return m.close() }) })
	w.must(func(m *testRank) error {
		return m.open(t, driver.Config{
			Rank: m.number, Size: n, LocalRank: m.number, Store: store, Timeout: timeout,
		})
	})
	return w
}

// newGroup is like newTestGroup, but also connects a group of all ranks.
func newGroup(t *testing.T, n int, timeout time.Duration) *testGroup {
	t.Helper()
	w := newTestGroup(t, n, timeout)
	w.regroup()
	return w
}

// newAdditiveGroup is like newGroup, but with additive repeated sums.
func newAdditiveGroup(t *testing.T, n int, timeout time.Duration) *testGroup {
	t.Helper()
	w := newGroup(t, n, timeout)
	w.hasAdditiveSums = true
	return w
}

func newTestRank(number int) *testRank {
	return &testRank{number: number, launched: map[cuda.Function]int{}}
}

func (m *testRank) open(t *testing.T, cfg driver.Config) error {
	ctx, cancel := connectContext(t.Context())
	defer cancel()
	d, err := Backend{}.Open(ctx, cfg)
	if err != nil {
		return err
	}

	m.device = d.(*Device)
	if m.arena, err = d.NewArena(1 << 40); err != nil {
		return err
	}

	if m.stream, err = d.NewStream(); err != nil {
		return err
	}

	return m.device.gpu.Do(func() error {
		at, err := m.device.gpu.CUDA.MemAllocHost(pinnedBytes)
		if err == nil {
			m.pinned = dl.Bytes(at, pinnedBytes)
		}

		return err
	})
}

// close frees everything that the rank has created, even if the test failed early.
func (m *testRank) close() error {
	var errs []error
	for _, g := range m.graphs {
		errs = append(errs, g.Close())
	}

	for _, s := range m.others {
		errs = append(errs, s.Close())
	}

	if m.stream != nil {
		errs = append(errs, m.stream.Close())
	}

	if m.group != nil {
		errs = append(errs, m.closeGroup())
	}

	for _, s := range m.regions {
		errs = append(errs, s.segment.Unmap())
	}

	if m.arena != nil {
		errs = append(errs, m.arena.Close())
	}

	if m.pinned != nil {
		errs = append(errs, m.device.gpu.Do(func() error {
			return m.device.gpu.CUDA.MemFreeHost(dl.AddressOf(&m.pinned[0]))
		}))
	}

	if m.device != nil {
		errs = append(errs, m.device.Close())
	}

	return errors.Join(errs...)
}

// closeGroup deregisters the rank's windows, closes its group, and waits for the teardown of the
// group.
func (m *testRank) closeGroup() error {
	var errs []error
	for _, s := range m.regions {
		if s.window != nil {
			errs = append(errs, s.window.Deregister())
			s.window = nil
		}
	}

	c := m.group.(*communicator)
	m.group = nil
	errs = append(errs, c.Close())
	if timeoutErr := c.stages.await(c.stages.allFreed); timeoutErr != nil {
		return errors.Join(append(errs, timeoutErr)...)
	}

	return errors.Join(append(errs, c.teardown.result)...)
}

// each calls f concurrently for every rank of the group, and returns the errors by rank.
func (w *testGroup) each(f func(m *testRank) error) []error {
	errs := make([]error, len(w.ranks))
	var all sync.WaitGroup
	for r, m := range w.ranks {
		all.Go(func() { errs[r] = f(m) })
	}

	all.Wait()
	return errs
}

// must calls each, and stops the test if a rank returns an error.
func (w *testGroup) must(f func(m *testRank) error) {
	w.t.Helper()
	for r, err := range w.each(f) {
		if err != nil {
			w.t.Errorf("rank %d: %v", w.ranks[r].number, err)
		}
	}

	if w.t.Failed() {
		w.t.FailNow()
	}
}

// failuref returns a test failure as an error. Unlike fmt.Errorf, it accepts errors that may be
// nil as arguments.
func failuref(format string, args ...any) error {
	return fmt.Errorf("%s", fmt.Sprintf(format, args...))
}

// withSum calls must with a repeated sum for each rank.
func (w *testGroup) withSum(count int64, f func(m *testRank, p *repeatedSum) error) {
	w.t.Helper()
	w.withSums([]int64{count}, func(m *testRank, sums []*repeatedSum) error { return f(m, sums[0]) })
}

// withSums calls must with several repeated sums for each rank.
func (w *testGroup) withSums(counts []int64, f func(m *testRank, sums []*repeatedSum) error) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		sums := make([]*repeatedSum, len(counts))
		for i, count := range counts {
			var err error
			if sums[i], err = m.newRepeatedSum(w, uint32(i+1), count); err != nil {
				return err
			}
		}

		return f(m, sums)
	})
}

// connectContext returns a context for opening a device or connecting a group. On a busy machine,
// either may take longer than the short timeout of the ranks in some tests.
func connectContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Minute)
}

// regroup closes any current group and connects a group of the given ranks, or of all
// ranks if none are given.
func (w *testGroup) regroup(worldRanks ...int) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		if m.group == nil {
			return nil
		}

		return m.closeGroup()
	})
	w.groups++
	id := fmt.Sprintf("group %d", w.groups)
	w.ranks = nil
	if len(worldRanks) == 0 {
		for _, m := range w.opened {
			worldRanks = append(worldRanks, m.number)
		}
	}

	for _, number := range worldRanks {
		w.ranks = append(w.ranks, w.opened[number])
	}

	ctx, cancel := connectContext(w.t.Context())
	defer cancel()
	w.must(func(m *testRank) (err error) {
		m.rank = slices.Index(worldRanks, m.number)
		m.group, err = m.device.Connect(ctx, driver.GroupConfig{
			ID: id, Ranks: worldRanks, Rank: m.rank, Check: isOneMachine(), Formula: w.formula,
		})
		return err
	})
}

// newStreams creates streams that are closed with the rank.
func (m *testRank) newStreams(n int) ([]*stream.Stream, error) {
	first := len(m.others)
	for range n {
		s, err := m.device.NewStream()
		if err != nil {
			return nil, err
		}

		m.others = append(m.others, s.(*stream.Stream))
	}

	return m.others[first:], nil
}

// captureWork captures work on a stream. The graph is closed with the rank.
func (m *testRank) captureWork(s driver.Stream, work func() error) (driver.Graph, error) {
	err := errors.Join(s.BeginCapture(), work())
	g, endErr := s.EndCapture()
	if endErr == nil {
		m.graphs = append(m.graphs, g)
	}

	return g, errors.Join(err, endErr)
}

// mapRegion maps a new segment of at least the given size.
func (m *testRank) mapRegion(bytes int64) (*region, error) {
	g := m.device.Info().Granularity
	bytes = (bytes + g - 1) / g * g
	segment, err := m.arena.Map(m.mapped, bytes)
	if err != nil {
		return nil, err
	}

	m.mapped += bytes
	s := &region{segment: segment}
	m.regions = append(m.regions, s)
	return s, nil
}

// register registers memory with the group. It is collective. name identifies the window.
func (m *testRank) register(w *testGroup, s *region, name uint32) (err error) {
	s.window, err = m.group.Register(w.t.Context(), driver.SegmentKey{Pool: 1, Ordinal: name},
		s.segment)
	return err
}

// launch queues a call on the direct path.
func (m *testRank) launch(s driver.Stream, call driver.Call) error {
	call.Path = driver.PathDirect
	p, err := prepare(m.group, call)
	if err != nil {
		return err
	}

	m.countLaunch(p.(*plan))
	return m.group.Launch(s, p)
}

// readDevice returns the contents of device memory. bytes must be at most pinnedBytes.
func (m *testRank) readDevice(w *testGroup, at uintptr, bytes int64) ([]byte, error) {
	err := errors.Join(m.stream.Copy(dl.AddressOf(&m.pinned[0]), at, bytes),
		m.stream.Synchronize(w.t.Context()))
	return m.pinned[:bytes], err
}
