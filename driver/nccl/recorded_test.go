package nccl

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// foreignStream plays another library, which owns a stream and a graph that was captured on this
// stream.
type foreignStream struct {
	m          *testRank
	cudaStream cuda.Stream
	stream     *stream.Stream
	graph      cuda.Graph
	exec       cuda.GraphExec
}

func (m *testRank) newForeignStreams(n int) (foreign []*foreignStream, err error) {
	for range n {
		o := &foreignStream{m: m}
		if o.cudaStream, o.stream, err = m.device.newForeignStream(); err != nil {
			return foreign, err
		}

		foreign = append(foreign, o)
	}

	return foreign, nil
}

// capture captures work on the stream, as the stream's owner would, and instantiates the graph.
func (o *foreignStream) capture(work func() error) (err error) {
	if o.graph, err = o.m.device.captureAsOwner(o.cudaStream, work); err != nil {
		return err
	}

	return o.m.device.gpu.Do(func() error {
		o.exec, err = o.m.device.gpu.CUDA.GraphInstantiate(o.graph)
		return err
	})
}

// captureForeign captures a call of the rank's group on a new stream of another library.
func (m *testRank) captureForeign(call driver.Call) (*foreignStream, error) {
	foreign, err := m.newForeignStreams(1)
	if err != nil {
		return nil, err
	}

	return foreign[0], foreign[0].capture(func() error { return foreign[0].recordCall(call) })
}

// record adds a call for each sum to the stream's capture.
func (o *foreignStream) record(path driver.Path, sums ...*repeatedSum) error {
	for _, p := range sums {
		if err := o.recordCall(p.call(path)); err != nil {
			return err
		}
	}

	return nil
}

func (o *foreignStream) recordCall(call driver.Call) error {
	plan, err := prepare(o.m.group, call)
	if err != nil {
		return err
	}

	return o.m.group.(driver.Recorder).Record(o.stream, plan)
}

// replay launches the graph, which must contain a call for each of the given sums.
func (o *foreignStream) replay(sums ...*repeatedSum) error {
	for _, p := range sums {
		p.countCalls(o.m.group.(*communicator), 1)
	}

	gpu := o.m.device.gpu
	return gpu.Do(func() error { return gpu.CUDA.GraphLaunch(o.exec, o.cudaStream) })
}

func (o *foreignStream) replayAndWait(sums ...*repeatedSum) error {
	if err := o.replay(sums...); err != nil {
		return err
	}

	_, err := o.waitIdle()
	return err
}

// waitIdle waits for the stream's work and returns how long it has waited.
func (o *foreignStream) waitIdle() (time.Duration, error) {
	begin, d := time.Now(), o.m.device
	err := gpu.PollQueryFor(time.Minute, func() (done bool, err error) {
		err = d.gpu.Do(func() error { done, err = d.gpu.CUDA.StreamQuery(o.cudaStream); return err })
		return done, err
	})
	return time.Since(begin), err
}

// destroy destroys the graph as its owner would.
func (o *foreignStream) destroy() error {
	d := o.m.device
	return d.gpu.Do(func() error {
		if o.exec == 0 {
			return nil
		}

		return errors.Join(d.gpu.CUDA.GraphExecDestroy(o.exec), d.gpu.CUDA.GraphDestroy(o.graph))
	})
}

func (o *foreignStream) closeStream() error {
	return errors.Join(o.stream.Close(), o.m.device.destroy(o.cudaStream))
}

// finish waits for the streams and then destroys them and their graphs.
func finish(foreign ...*foreignStream) error {
	var errs []error
	for _, o := range foreign {
		if _, err := o.waitIdle(); err != nil {
			errs = append(errs, fmt.Errorf("waiting for a foreign stream: %w", err))
		}
	}

	for _, o := range foreign {
		errs = append(errs, o.stream.Close(), o.destroy(), o.m.device.destroy(o.cudaStream))
	}

	return errors.Join(errs...)
}

// join makes the stream waiter wait for the work on the stream ahead, as the owner of both
// streams would.
func join(waiter, ahead *foreignStream) error {
	d := waiter.m.device
	return d.gpu.Do(func() error {
		e, err := d.gpu.CUDA.EventCreate(cuda.EventDisableTiming)
		if err != nil {
			return err
		}

		return errors.Join(d.gpu.CUDA.EventRecord(e, ahead.cudaStream),
			d.gpu.CUDA.StreamWaitEvent(waiter.cudaStream, e), d.gpu.CUDA.EventDestroy(e))
	})
}

func twoCounts(count int64) []int64 { return []int64{count, count} }

// pairs lists pairs of calls that must be serialized.
var pairs = []struct {
	name   string
	counts []int64
	paths  [2]driver.Path
}{
	{"short", []int64{250, 250}, [2]driver.Path{driver.PathDirect, driver.PathDirect}},
	{"long", []int64{60_000, 60_000}, [2]driver.Path{driver.PathDirect, driver.PathDirect}},
	{"short and long", []int64{250, 60_000}, [2]driver.Path{driver.PathDirect, driver.PathDirect}},
	{"plain and direct", []int64{5000, 5000}, [2]driver.Path{driver.PathPlain, driver.PathDirect}},
	{"window and direct", []int64{5000, 5000}, [2]driver.Path{driver.PathWindow, driver.PathDirect}},
	{"plain", []int64{5000, 5000}, [2]driver.Path{driver.PathPlain, driver.PathPlain}},
}

// forEachPair runs a test for each of pairs, with 2 ranks and with 4 ranks.
func forEachPair(
	t *testing.T, test func(m *testRank, w *testGroup, sums []*repeatedSum, p [2]driver.Path) error,
) {
	for _, ranks := range []int{2, 4} {
		for _, pair := range pairs {
			t.Run(fmt.Sprintf("%s, %d ranks", pair.name, ranks), func(t *testing.T) {
				w := newAdditiveGroup(t, ranks, 20*time.Second)
				w.withSums(pair.counts, func(m *testRank, sums []*repeatedSum) error {
					if err := test(m, w, sums, pair.paths); err != nil {
						return err
					}

					return errors.Join(m.check(w, sums[0]), m.check(w, sums[1]))
				})
			})
		}
	}
}

// TestReplaysOnSeveralStreamsTakeTurns replays two graphs of another library on separate streams.
func TestReplaysOnSeveralStreamsTakeTurns(t *testing.T) {
	forEachPair(t, func(m *testRank, _ *testGroup, sums []*repeatedSum, paths [2]driver.Path) error {
		foreign, err := m.newForeignStreams(2)
		for i, o := range foreign {
			err = errors.Join(err, o.capture(func() error { return o.record(paths[i], sums[i]) }))
		}

		for round := range 12 {
			i := round * 5 % 7 % 2
			if err == nil {
				err = foreign[i].replay(sums[i])
			}
		}

		return errors.Join(err, finish(foreign...))
	})
}

// TestReplaysAndOtherCallsTakeTurns replays a graph while calls are launched on two other
// streams: one of the rank's own streams and an adopted stream.
func TestReplaysAndOtherCallsTakeTurns(t *testing.T) {
	forEachPair(t, func(m *testRank, w *testGroup, sums []*repeatedSum, paths [2]driver.Path) error {
		foreign, err := m.newForeignStreams(2)
		if err != nil {
			return err
		}

		// The group's first capture must also be ordered after calls that have not completed.
		err = errors.Join(sums[1].launch(m.group, m.stream, paths[1]),
			foreign[0].capture(func() error { return foreign[0].record(paths[0], sums[0]) }))
		for round := range 10 {
			s := []driver.Stream{m.stream, foreign[1].stream}[round/2%2]
			err = errors.Join(err, foreign[0].replay(sums[0]), sums[1].launch(m.group, s, paths[1]))
		}

		return errors.Join(err, m.stream.Synchronize(w.t.Context()), finish(foreign...))
	})
}

// TestBranchesOfACaptureTakeTurns captures calls on two branches of a capture, which are joined
// only at the end.
func TestBranchesOfACaptureTakeTurns(t *testing.T) {
	forEachPair(t, func(m *testRank, _ *testGroup, sums []*repeatedSum, paths [2]driver.Path) error {
		foreign, err := m.newForeignStreams(2)
		if err != nil {
			return err
		}

		err = foreign[0].capture(func() error {
			err := join(foreign[1], foreign[0])
			for range 2 {
				for i, o := range foreign {
					err = errors.Join(err, o.record(paths[i], sums[i]))
				}
			}

			return errors.Join(err, join(foreign[0], foreign[1]))
		})
		for range 4 {
			if err == nil {
				err = foreign[0].replay(sums[0], sums[1], sums[0], sums[1])
			}
		}

		return errors.Join(err, finish(foreign...))
	})
}

// TestOwnAndForeignGraphsTakeTurns replays a graph of symmem and a graph of another library on
// different streams.
func TestOwnAndForeignGraphsTakeTurns(t *testing.T) {
	forEachPair(t, func(m *testRank, w *testGroup, sums []*repeatedSum, paths [2]driver.Path) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		g, err := m.capture(sums[1], paths[1], 2)
		if err != nil {
			return err
		}

		err = foreign[0].capture(func() error { return foreign[0].record(paths[0], sums[0]) })
		for range 8 {
			err = errors.Join(err, foreign[0].replay(sums[0]), sums[1].replay(m, g, m.stream, 2))
		}

		return errors.Join(err, m.stream.Synchronize(w.t.Context()), finish(foreign...))
	})
}

// TestCaptureAddsTwoNodesPerGroup checks the number of nodes in a captured graph, and their
// dependencies. Besides a node for each call, there must be two nodes for each group.
func TestCaptureAddsTwoNodesPerGroup(t *testing.T) {
	w := newAdditiveGroup(t, 2, 20*time.Second)
	w.withSums(twoCounts(smallCount), func(m *testRank, sums []*repeatedSum) error {
		second, err := m.device.Connect(t.Context(), driver.GroupConfig{
			ID: "second", Ranks: []int{0, 1}, Rank: m.rank, Check: isOneMachine(),
		})
		if err != nil {
			return err
		}

		foreign, err := m.newForeignStreams(2)
		if err != nil {
			return err
		}

		plans := make([]driver.Plan, 2)
		for i, g := range []driver.Communicator{m.group, second} {
			// The calls use no windows, because all windows belong to the first group.
			call := sums[i].call(driver.PathDirect)
			call.SendWindow, call.RecvWindow = nil, nil
			if plans[i], err = prepare(g, call); err != nil {
				return err
			}
		}

		const rounds = 5
		err = foreign[0].capture(func() error {
			err := join(foreign[1], foreign[0])
			for i := range rounds {
				for k, o := range foreign {
					// Each branch uses the groups in a different order.
					for _, p := range []driver.Plan{plans[(i+k)%2], plans[(i+k+1)%2]} {
						err = errors.Join(err, p.(*plan).c.Record(o.stream, p))
					}
				}
			}

			return errors.Join(err, join(foreign[0], foreign[1]))
		})
		if err != nil {
			return err
		}

		if err := checkNodes(m.device, foreign[0].graph, 4*rounds, 2); err != nil {
			return err
		}

		for range 3 {
			err = errors.Join(err, foreign[0].replay())
			for _, p := range sums {
				p.countCalls(m.group.(*communicator), 2*rounds)
			}
		}

		return errors.Join(err, finish(foreign...), m.check(w, sums[0]), m.check(w, sums[1]),
			second.Close())
	})
}

// checkNodes checks the nodes and dependencies of a graph with the given numbers of calls and
// groups.
func checkNodes(d *Device, g cuda.Graph, calls, groups int) error {
	nodes, err := d.graphNodes(g)
	sources, targets, edgesErr := d.graphEdges(g)
	err = errors.Join(err, edgesErr)
	if want := calls + 2*groups; len(nodes) != want {
		err = errors.Join(err, fmt.Errorf("a graph of %d calls of %d groups has %d nodes, want %d",
			calls, groups, len(nodes), want))
	}

	var roots, leaves int
	for _, n := range nodes {
		if !slices.Contains(targets, n) {
			roots++
		}

		if !slices.Contains(sources, n) {
			leaves++
		}
	}

	if roots != 1 || leaves < groups {
		err = errors.Join(err, fmt.Errorf("the graph has %d roots and %d leaves, want 1 and at least %d",
			roots, leaves, groups))
	}

	return err
}

// TestCaptureAddsNodesIfEdgesCannotBeRemoved makes the first removal of a dependency fail on one
// rank. The results must still be correct.
func TestCaptureAddsNodesIfEdgesCannotBeRemoved(t *testing.T) {
	if !inSoftGPUProcess(t, "cuGraphRemoveDependencies_v2:1:801") {
		return
	}

	w := newAdditiveGroup(t, 2, 20*time.Second)
	nodes := make([]int, 2)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		err = errors.Join(err, foreign[0].capture(func() error {
			return foreign[0].record(driver.PathDirect, p, p, p)
		}))
		if err != nil {
			return err
		}

		found, err := m.device.graphNodes(foreign[0].graph)
		nodes[m.rank] = len(found)
		for range 3 {
			err = errors.Join(err, foreign[0].replay(p, p, p),
				p.launch(m.group, m.stream, driver.PathDirect))
		}

		return errors.Join(err, m.stream.Synchronize(t.Context()), finish(foreign...), m.check(w, p))
	})
	if nodes[0]+nodes[1] != 5+6 { // the failure is injected on one rank
		t.Errorf("got %v nodes in the graphs with 3 calls, want 5 and 6", nodes)
	}
}

// maxEntries is the maximum number of nodes, and of edges, in the graphs of these tests.
const maxEntries = 1 << 10

func (d *Device) graphNodes(g cuda.Graph) ([]cuda.Node, error) {
	nodes, count := make([]cuda.Node, maxEntries), uint64(maxEntries)
	err := d.queryGraph("cuGraphGetNodes", g, dl.AddressOf(&nodes[0]), dl.AddressOf(&count))
	return nodes[:count], err
}

// graphEdges returns the dependencies of a graph: targets[i] depends on sources[i].
func (d *Device) graphEdges(g cuda.Graph) (sources, targets []cuda.Node, err error) {
	sources, targets = make([]cuda.Node, maxEntries), make([]cuda.Node, maxEntries)
	data, count := make([]uint64, maxEntries), uint64(maxEntries) // CUgraphEdgeData has 8 bytes
	err = d.queryGraph("cuGraphGetEdges_v2", g, dl.AddressOf(&sources[0]), dl.AddressOf(&targets[0]),
		dl.AddressOf(&data[0]), dl.AddressOf(&count))
	runtime.KeepAlive(data)
	return sources[:count], targets[:count], err
}

// queryGraph calls a function of libcuda that returns information about a graph. Only tests need
// these functions.
func (d *Device) queryGraph(name string, g cuda.Graph, args ...uintptr) error {
	library, err := dl.Open(d.gpu.CUDA.Path())
	if err != nil {
		return err
	}

	function, found := library.Find(name)
	if !found {
		return fmt.Errorf("%s has no %s", library.Path(), name)
	}

	return d.gpu.Do(func() error {
		if code := function.Call(append([]uintptr{uintptr(g)}, args...)...); uint32(code) != 0 {
			return fmt.Errorf("%s: error %d", name, uint32(code))
		}

		return nil
	})
}
