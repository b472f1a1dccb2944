package drivertest

import (
	"bytes"
	"math"
	"sync/atomic"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
)

var collectiveRequirements = []requirement{
	{"collectives of one rank give the results of package formula", testRankCount(1)},
	{"collectives of two ranks give the results of package formula", testRankCount(2)},
	{"collectives of three ranks give the results of package formula", testRankCount(3)},
	{"collectives of four ranks give the results of package formula", testRankCount(4)},
	{"collectives of five ranks give the results of package formula", testRankCount(5)},
	{"every rank can be the root", testRoots},
	{"buffers can start at any element", testMisalignment},
	{"no rank leaves a barrier before all have entered it", testBarrier},
	{"several streams can use one group", testTwoStreams},
}

// elementCounts lists element counts around the sizes at which a backend may change its algorithm.
var elementCounts = []int64{0, 1, 2, 3, 7, 12, 13, 47, 100, 1023, 4097, 70001}

var dataTypes = reduce.DataTypes()

// bufferWorld is a world (the ranks of a test) with registered buffers.
type bufferWorld struct {
	*world
	send, recv []buffer // one of each per rank, by rank number
}

// newBufferWorld opens n ranks with buffers of the given size.
func newBufferWorld(t *testing.T, h Harness, n int, bytes int64, o options) *bufferWorld {
	t.Helper()
	bw := &bufferWorld{
		world: newWorld(t, h, n, o), send: make([]buffer, n), recv: make([]buffer, n),
	}
	bw.onEachRank(func(r *rank) {
		bw.send[r.number] = r.newWindow(bytes)
		bw.recv[r.number] = r.newWindow(bytes)
	})
	return bw
}

// tryCollective runs a trial on all ranks. If it fails on a rank, it ends the test.
func (bw *bufferWorld) tryCollective(tr *trial) {
	bw.t.Helper()
	succeeded := bw.tryOnEachRank(func(r *rank) {
		tr.run(r, bw.send[r.number], bw.recv[r.number])
	})
	if !succeeded {
		bw.t.Fatalf("%v on %d ranks", tr, len(bw.ranks))
	}
}

// tryAllVariants runs a trial on each path, in place and out of place, and on the direct path with
// unregistered buffers.
func (bw *bufferWorld) tryAllVariants(tr trial) {
	bw.t.Helper()
	if !bw.harness.hasOperation(tr.operation) || !bw.isExact(&tr) {
		return
	}

	tr.prepare(bw.harness, len(bw.ranks))
	for _, path := range bw.harness.Paths {
		for _, isInPlace := range []bool{false, true} {
			for _, isUnregistered := range []bool{false, true} {
				tr.path = path
				tr.isInPlace = isInPlace
				tr.isUnregistered = isUnregistered
				if bw.shouldTry(&tr) {
					bw.tryCollective(&tr)
				}
			}
		}
	}
}

// shouldTry reports whether to run the trial on its path. The first path must support every call,
// except for reductions that the harness does not list.
func (bw *bufferWorld) shouldTry(tr *trial) bool {
	if tr.isUnregistered && tr.path != driver.PathDirect {
		return false
	}

	r := bw.ranks[0] // all ranks have the same paths
	call := tr.call(r, bw.send[0], bw.recv[0])
	isListed := !tr.operation.Reduces() || bw.harness.hasReduction(tr.dataType, tr.op)
	if !isListed && !accepts(r.group, call) {
		return false
	}

	// If the path of the trial does not support the call, call.Path is the first path. That path has
	// its turn in another variant.
	return call.Path == tr.path
}

// isExact reports whether the result must equal the expected result bit for bit. Harness.Unordered
// makes the sums exact. Averages are then exact only if the number of ranks is a power of two.
func (bw *bufferWorld) isExact(tr *trial) bool {
	n := len(bw.ranks)
	isPowerOfTwo := n&(n-1) == 0
	return !bw.harness.Unordered || !tr.op.IsAverage() || isPowerOfTwo
}

// testRankCount returns a test of all operations on n ranks with every type and count. It does not
// try every reduction with all of them; see tryReductions.
func testRankCount(n int) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		bw := newBufferWorld(t, h, n, 4<<20, options{checkCalls: true})
		for _, dataType := range dataTypes {
			for i, count := range elementCounts {
				if h.skipsTrial(n + i + int(dataType)) {
					continue
				}

				bw.tryReductions(dataType, count, i)
				bw.tryOtherOperations(dataType, count, i)
			}
		}
	}
}

// tryReductions tries AllReduce with all reductions for three types, and with one reduction for
// other types. index selects the reduction.
func (bw *bufferWorld) tryReductions(dataType driver.DataType, count int64, index int) {
	bw.t.Helper()
	ops := driver.ReductionsOf(dataType)
	triesAll := dataType == driver.Float32 || dataType == driver.BFloat16 ||
		dataType == driver.Int8
	if !triesAll {
		selected := (index + int(dataType)) % len(ops)
		ops = ops[selected : selected+1]
	}

	for _, op := range ops {
		tr := trial{operation: driver.AllReduce, dataType: dataType, op: op, count: count}
		bw.tryAllVariants(tr)
	}
}

// tryOtherOperations tries the operations other than AllReduce, with one reduction and one root,
// which index selects. It tries the largest count only for two types.
func (bw *bufferWorld) tryOtherOperations(dataType driver.DataType, count int64, index int) {
	bw.t.Helper()
	triesAllCounts := dataType == driver.Float64 || dataType == driver.Uint8
	const maxCount = 5000 // for the other types
	if count > maxCount && !triesAllCounts {
		return
	}

	ops := driver.ReductionsOf(dataType)
	op := ops[(index+int(dataType))%len(ops)]
	root := (index + int(dataType)) % len(bw.ranks)
	for _, o := range []driver.Operation{
		driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast, driver.AllToAll,
		driver.ReduceScatterV, driver.AllGatherV, driver.Gather, driver.Scatter,
	} {
		bw.tryAllVariants(trial{operation: o, dataType: dataType, op: op, count: count, root: root})
	}
}

func testRoots(t *testing.T, h Harness) {
	const n = 4
	bw := newBufferWorld(t, h, n, 2<<20, options{checkCalls: true})
	operations := []driver.Operation{
		driver.Broadcast, driver.Reduce, driver.Gather, driver.Scatter,
	}
	for root := range n {
		for _, count := range []int64{3, 1000, 70001} {
			for _, o := range operations {
				tr := trial{operation: o, dataType: driver.Int32, count: count, root: root}
				bw.tryAllVariants(tr)
			}
		}
	}
}

// testMisalignment tries buffers that begin at an element that is not the first one of a segment.
func testMisalignment(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 3, 2<<20, options{checkCalls: true})
	for i, shift := range []int64{1, 5, 31} {
		for j, dataType := range []driver.DataType{driver.Float32, driver.Float16, driver.Int8} {
			for k, count := range []int64{13, 1001, 40001} {
				if h.skipsTrial(i + j + k) {
					continue
				}

				for o := range driver.AllReduceRMSNorm {
					if o.PointToPoint() || o == driver.Barrier || o == driver.AllToAllV {
						continue
					}

					bw.tryAllVariants(trial{
						operation: o, dataType: dataType, count: count, shift: shift, root: 1,
					})
				}
			}
		}
	}
}

func testBarrier(t *testing.T, h Harness) {
	const n, rounds = 4, 200
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true})
	hasEntered := make([][n]atomic.Bool, rounds)
	bw.onEachRank(func(r *rank) {
		for round := range rounds {
			hasEntered[round][r.number].Store(true)
			call := driver.Call{Operation: driver.Barrier, Digest: 1}
			r.must(r.launchAndWait(r.group, r.stream, call))
			for other := range n {
				if !hasEntered[round][other].Load() {
					r.failf("round %d: this rank left the barrier before rank %d had entered it",
						round, other)
				}
			}
		}
	})
}

// testTwoStreams makes a chain of sums on two streams, which alternate. Each call sends the data
// that the previous call, on the other stream, has received.
func testTwoStreams(t *testing.T, h Harness) {
	const n = 3
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true})
	bw.onEachRank(bw.sumOnTwoStreams)
}

func (bw *bufferWorld) sumOnTwoStreams(r *rank) {
	const count, rounds = 3000, 20
	streams := [2]driver.Stream{r.stream, r.newStream()}
	buffers := [2]buffer{bw.send[r.number], bw.recv[r.number]}
	r.write(buffers[0].addressAt(0), repeatFloat(1, count))
	paths := bw.harness.Paths
	done := r.newEvent() // of the previous call
	for round := range rounds {
		s := streams[round%2]
		src := buffers[round%2]
		dst := buffers[(round+1)%2]
		path := paths[round/2%len(paths)] // each path for two rounds
		call := r.onSupportedPath(r.group, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float64, Count: count,
			Path: path, Digest: uint64(round),
			Send: src.addressAt(0), Recv: dst.addressAt(0),
			SendWindow: src.window, RecvWindow: dst.window,
		})
		r.must(s.Wait(done))
		r.must(r.queueCall(r.group, s, call))
		r.must(s.Record(done))
	}

	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}

	// Each call multiplies the elements by the number of ranks, because all ranks have the same ones.
	want := math.Pow(float64(len(bw.ranks)), rounds)
	result := buffers[rounds%2]
	r.expectBytes(result.addressAt(0), repeatFloat(want, count))
}

// repeatFloat encodes count elements of type Float64 with the same value.
func repeatFloat(value float64, count int) []byte {
	element := formula.AppendFloat(nil, driver.Float64, value)
	return bytes.Repeat(element, count)
}
