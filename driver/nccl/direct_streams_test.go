package nccl

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// newOddGroup opens a test group of three ranks, so that repeated sums stay odd (see
// repeatedSum). On a machine with two GPUs, it opens a group of two ranks with additive repeated
// sums instead.
func newOddGroup(t *testing.T) *testGroup {
	t.Helper()
	w := newGroup(t, ranksUpTo(t, 3), time.Minute)
	w.hasAdditiveSums = len(w.opened) == 2
	return w
}

// TestStreamsTakeTurns launches calls on several streams of each rank. Although no events order
// the streams, the calls of the group must be serialized.
func TestStreamsTakeTurns(t *testing.T) {
	w := newOddGroup(t)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(2)
		if err != nil {
			return err
		}

		streams := []driver.Stream{m.stream, others[0], others[1]}
		for i := range 300 {
			// Ranks use their streams in different orders.
			if err := p.launch(m.group, streams[(i+i/7*m.rank)%3], driver.PathDirect); err != nil {
				return err
			}
		}

		return m.check(w, p, streams...)
	})
}

// TestCaptureKeepsTheOrderOfStreams launches on a busy stream, captures that stream, and launches
// on another stream. The second launch must still run second.
func TestCaptureKeepsTheOrderOfStreams(t *testing.T) {
	w := newOddGroup(t)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(1)
		if err != nil {
			return err
		}

		err = p.launch(m.group, m.stream, driver.PathDirect)
		_, captureErr := m.capture(p, driver.PathDirect, 1)
		unblock, blockErr := m.blockStream(m.stream.(*stream.Stream).CUDA)
		if err = errors.Join(err, captureErr, blockErr); err != nil {
			return err
		}

		err = errors.Join(p.launch(m.group, m.stream, driver.PathDirect),
			p.launch(m.group, others[0], driver.PathDirect))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err == nil && gpu.Poll(ctx, others[0].Idle) == nil {
			err = errors.New("the second launch ran before the first")
		}

		return errors.Join(err, unblock(), m.check(w, p, m.stream, others[0]))
	})
}

// machinePaths is the number of paths that a group on one machine can use. They precede
// PathTwoLevel.
const machinePaths = driver.PathTwoLevel

// TestPathsMix uses each path in turn on the same memory.
func TestPathsMix(t *testing.T) {
	w := newOddGroup(t)
	w.withSum(5000, func(m *testRank, p *repeatedSum) error {
		for i := range 200 {
			if err := p.launch(m.group, m.stream, driver.Path(i%int(machinePaths))); err != nil {
				return err
			}
		}

		return m.check(w, p, m.stream)
	})
}

// TestPathsTakeTurns launches a call on a blocked stream, and then a second call on another
// stream and path. The second call must run second, even if it is in a graph: an NCCL kernel and
// a direct kernel might not fit on a GPU together, so ranks that ran them in different orders
// would deadlock.
func TestPathsTakeTurns(t *testing.T) {
	w := newOddGroup(t)
	w.withSums(twoCounts(smallCount), func(m *testRank, sums []*repeatedSum) error {
		others, err := m.newStreams(1)
		graph, captureErr := m.capture(sums[1], driver.PathDirect, 1)
		err = errors.Join(err, captureErr, m.warmUp(sums), m.check(w, sums[0], m.stream))
		if err != nil {
			return err
		}

		other := others[0]
		for path := range machinePaths {
			for second := range machinePaths + 1 {
				second := func() error {
					if second == machinePaths {
						return sums[1].replay(m, graph, other, 1)
					}

					return sums[1].launch(m.group, other, second)
				}
				first := func() error { return sums[0].launch(m.group, m.stream, path) }
				err := m.checkOrder(m.stream.(*stream.Stream).CUDA, first, other.CUDA, second)
				if err != nil {
					return fmt.Errorf("a second call after one on the %v path: %w", path, err)
				}
			}
		}

		return errors.Join(m.check(w, sums[0], m.stream), m.check(w, sums[1], other))
	})
}

// TestPathsTakeTurnsWithReplays repeats TestPathsTakeTurns with graphs of another library.
func TestPathsTakeTurnsWithReplays(t *testing.T) {
	w := newOddGroup(t)
	w.withSums(twoCounts(smallCount), func(m *testRank, sums []*repeatedSum) error {
		foreign, err := m.newForeignStreams(int(machinePaths))
		err = errors.Join(err, m.warmUp(sums))
		for path, o := range foreign {
			err = errors.Join(err, o.capture(func() error {
				return o.record(driver.Path(path), sums[0])
			}))
		}

		own := m.stream.(*stream.Stream).CUDA
		for path, o := range foreign {
			for second := range machinePaths {
				replay := func() error { return o.replay(sums[0]) }
				call := func() error { return sums[1].launch(m.group, m.stream, second) }
				err = errors.Join(err, m.checkOrder(o.cudaStream, replay, own, call),
					m.checkOrder(own, call, o.cudaStream, replay))
				if err != nil {
					return fmt.Errorf("a graph on the %v path and a call on the %v path: %w",
						driver.Path(path), second, err)
				}
			}
		}

		return errors.Join(finish(foreign...), m.check(w, sums[0], m.stream),
			m.check(w, sums[1], m.stream))
	})
}

// warmUp makes a call on each path, because NCCL connects ranks during the first calls.
func (m *testRank) warmUp(sums []*repeatedSum) (err error) {
	for _, p := range sums {
		for path := range machinePaths {
			err = errors.Join(err, p.launch(m.group, m.stream, path))
		}
	}

	return err
}

// checkOrder blocks a stream, calls first, which must launch on that stream, and then calls
// second, which must launch on other. It returns an error if the second call runs before the
// first.
func (m *testRank) checkOrder(
	blocked cuda.Stream, first func() error, other cuda.Stream, second func() error,
) error {
	idle := func(s cuda.Stream) func() (bool, error) {
		return func() (done bool, err error) {
			err = m.device.gpu.Do(func() error { done, err = m.device.gpu.CUDA.StreamQuery(s); return err })
			return done, err
		}
	}
	unblock, err := m.blockStream(blocked)
	err = errors.Join(err, first(), second())
	if err == nil && gpu.PollQueryFor(20*time.Millisecond, idle(other)) == nil {
		err = errors.New("the second call ran before the first")
	}

	return errors.Join(err, unblock(), gpu.PollQueryFor(time.Minute, idle(blocked)),
		gpu.PollQueryFor(time.Minute, idle(other)))
}

// TestEagerAndCapturedCallsMix replays a graph of small calls 1,000 times, with eager calls in
// between. After every 100 replays, it also replays a graph with a bulk kernel, but not more often,
// because bulk kernels are slow on the software GPU.
func TestEagerAndCapturedCallsMix(t *testing.T) {
	replays := 1000
	if usesSoftGPU(t) {
		replays = 300
	}

	calls := []int{3, 1}
	w := newOddGroup(t)
	w.withSums([]int64{500, countFor["bulk"]}, func(m *testRank, sums []*repeatedSum) error {
		others, err := m.newStreams(1)
		var graphs [2]driver.Graph
		for i, p := range sums {
			var captureErr error
			graphs[i], captureErr = m.capture(p, driver.PathDirect, calls[i])
			err = errors.Join(err, captureErr)
		}

		if err != nil {
			return err
		}

		for i := range replays {
			s := []driver.Stream{m.stream, others[0]}[i/10%2]
			err := sums[0].replay(m, graphs[0], s, calls[0])
			if err == nil && i%3 == 0 {
				err = sums[0].launch(m.group, s, driver.PathDirect)
			}

			if err == nil && i%100 == 55 {
				err = sums[1].replay(m, graphs[1], s, calls[1])
			}

			if err != nil {
				return fmt.Errorf("replay %d: %w", i, err)
			}
		}

		return errors.Join(m.check(w, sums[0], m.stream, others[0]), m.check(w, sums[1], m.stream))
	})
}

// capture captures the given number of calls in a graph.
func (m *testRank) capture(p *repeatedSum, path driver.Path, calls int) (driver.Graph, error) {
	want := p.want
	defer func() { p.want = want }()
	return m.captureWork(m.stream, func() (err error) {
		for range calls {
			err = errors.Join(err, p.launch(m.group, m.stream, path))
		}

		return err
	})
}

// TestLargeCallsAreCaptured captures calls with bulk kernels.
func TestLargeCallsAreCaptured(t *testing.T) {
	w := newOddGroup(t)
	w.withSum(countFor["bulk"], func(m *testRank, p *repeatedSum) error {
		g, err := m.capture(p, driver.PathDirect, 2)
		if err != nil {
			return err
		}

		for range 3 {
			err = errors.Join(err, p.replay(m, g, m.stream, 2),
				p.launch(m.group, m.stream, driver.PathDirect))
		}

		return errors.Join(err, m.check(w, p, m.stream))
	})
}

// TestGroupsRunConcurrently launches calls of two groups with the same ranks. Each group uses a
// separate stream, and ranks launch the calls in different orders.
func TestGroupsRunConcurrently(t *testing.T) {
	const rounds = 200
	w := newOddGroup(t)
	w.must(func(m *testRank) error {
		groups, last := []driver.Communicator{m.group}, len(w.ranks)-1
		second, err := m.device.Connect(t.Context(), driver.GroupConfig{
			ID: "second", Ranks: append([]int{last}, []int{0, 1}[:last]...),
			Rank: (m.rank + 1) % len(w.ranks), Check: isOneMachine(),
		})
		if err != nil {
			return err
		}

		groups = append(groups, second)
		others, err := m.newStreams(1)
		if err != nil {
			return err
		}

		sums, streams := make([]*repeatedSum, 2), []driver.Stream{m.stream, others[0]}
		first := m.group
		for i, g := range groups {
			m.group = g
			sums[i], err = m.newRepeatedSum(w, uint32(i+1), 700)
			if err != nil {
				return err
			}
		}

		m.group = first
		for round := range rounds {
			for i := range groups {
				k := (i + round*m.rank) % len(groups)
				if err := sums[k].launch(groups[k], streams[k], driver.PathDirect); err != nil {
					return err
				}
			}
		}

		for _, p := range sums {
			err = errors.Join(err, m.check(w, p, streams...))
		}

		err = errors.Join(err, sums[1].window.Deregister(), second.Close())
		sums[1].window = nil
		return err
	})
}

// TestAdoptedStreamsTakeTurns launches calls on two adopted streams and on one of the rank's own
// streams. It then alternates launches with replays of a graph that belongs to the owner of an
// adopted stream.
func TestAdoptedStreamsTakeTurns(t *testing.T) {
	w := newOddGroup(t)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(2)
		if err != nil {
			return err
		}

		streams := []driver.Stream{foreign[0].stream, foreign[1].stream, m.stream}
		for i := range 100 {
			if err := p.launch(m.group, streams[i%len(streams)], driver.PathDirect); err != nil {
				return err
			}
		}

		if err := m.check(w, p, streams...); err != nil {
			return err
		}

		// The group is closed after these streams are destroyed, and must not query CUDA about
		// them.
		o := foreign[0]
		err = o.capture(func() error { return o.record(driver.PathDirect, p, p) })
		for range 50 {
			if err == nil {
				err = errors.Join(o.replay(p, p), p.launch(m.group, o.stream, driver.PathDirect))
			}
		}

		return errors.Join(err, m.check(w, p, o.stream), finish(foreign...))
	})
}

// newForeignStream creates a stream as another library would, and adopts it.
func (d *Device) newForeignStream() (cudaStream cuda.Stream, adopted *stream.Stream, err error) {
	err = d.gpu.Do(func() (err error) {
		cudaStream, err = d.gpu.CUDA.StreamCreate()
		return err
	})
	if err != nil {
		return 0, nil, err
	}

	s, err := d.AdoptStream(uintptr(cudaStream))
	if err != nil {
		return 0, nil, err
	}

	return cudaStream, s.(*stream.Stream), nil
}

// destroy destroys a stream as its owner would.
func (d *Device) destroy(cudaStream cuda.Stream) error {
	return d.gpu.Do(func() error { return d.gpu.CUDA.StreamDestroy(cudaStream) })
}
