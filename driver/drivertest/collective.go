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
	{"a path refuses the same calls on all ranks", testEqualRefusals},
	{"the first path supports every type and exactly the listed reductions", testReductions},
}

// elementCounts lists element counts around the sizes at which a backend may change its algorithm.
var elementCounts = []int64{0, 1, 2, 3, 7, 12, 13, 47, 100, 1023, 4097, 70001}

var dataTypes = reduce.DataTypes()

// bufferWorld is a world with registered buffers.
type bufferWorld struct {
	*world
	send, recv []buffer // one of each per rank, by rank number
}

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

func (bw *bufferWorld) tryCollective(tr *trial) {
	bw.t.Helper()
	if !bw.tryOnEachRank(func(r *rank) { tr.run(r, bw.send[r.number], bw.recv[r.number]) }) {
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
	for _, tr.path = range bw.harness.Paths {
		for _, tr.isInPlace = range []bool{false, true} {
			for _, tr.isUnregistered = range []bool{false, true} {
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
	r := bw.ranks[0]
	call := tr.call(r, bw.send[0], bw.recv[0])
	isListed := !tr.operation.Reduces() || bw.harness.hasReduction(tr.dataType, tr.op)
	if !isListed && r.group.Offer(call).Refusal(call.Path) != nil {
		return false
	}
	return call.Path == tr.path
}

// isExact reports whether the result must equal the expected result bit for bit.
func (bw *bufferWorld) isExact(tr *trial) bool {
	n := len(bw.ranks)
	isPowerOfTwo := n&(n-1) == 0
	return !bw.harness.Unordered || !tr.op.IsAverage() || isPowerOfTwo
}

// testRankCount returns a test of all operations on n ranks with every type and count. It combines
// only some of them with every reduction; see tryReductions.
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

// tryReductions tries AllReduce with all reductions for three types, and with one for other types.
// index selects the reduction.
func (bw *bufferWorld) tryReductions(dataType driver.DataType, count int64, index int) {
	bw.t.Helper()
	ops := driver.ReductionsOf(dataType)
	for i, op := range ops {
		tryAll := dataType == driver.Float32 || dataType == driver.BFloat16 ||
			dataType == driver.Int8
		if !tryAll && i != (index+int(dataType))%len(ops) {
			continue
		}
		tr := trial{operation: driver.AllReduce, dataType: dataType, op: op, count: count}
		bw.tryAllVariants(tr)
	}
}

// tryOtherOperations tries the operations other than AllReduce, with one reduction and one root,
// which index selects. It tries the largest count only for two types.
func (bw *bufferWorld) tryOtherOperations(dataType driver.DataType, count int64, index int) {
	bw.t.Helper()
	ops := driver.ReductionsOf(dataType)
	op := ops[(index+int(dataType))%len(ops)]
	root := (index + int(dataType)) % len(bw.ranks)
	const maxCount = 5000 // for the other types
	if count > maxCount && dataType != driver.Float64 && dataType != driver.Uint8 {
		return
	}
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
	for root := range n {
		for _, count := range []int64{3, 1000, 70001} {
			for _, o := range []driver.Operation{
				driver.Broadcast, driver.Reduce, driver.Gather, driver.Scatter,
			} {
				tr := trial{operation: o, dataType: driver.Int32, count: count, root: root}
				bw.tryAllVariants(tr)
			}
		}
	}
}

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

// testTwoStreams alternates between two streams. Each call sends the data that the previous call,
// on the other stream, has received.
func testTwoStreams(t *testing.T, h Harness) {
	const n, count, rounds = 3, 3000, 20
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) {
		bw.alternateStreams(r, [2]driver.Stream{r.stream, r.newStream()}, count, rounds)
	})
}

func (bw *bufferWorld) alternateStreams(
	r *rank, streams [2]driver.Stream, count int64, rounds int,
) {
	buffers := [2]buffer{bw.send[r.number], bw.recv[r.number]}
	r.write(buffers[0].addressAt(0), repeatFloat(1, count))
	done := r.newEvent()
	for round := range rounds {
		s := streams[round%2]
		src, dst := buffers[round%2], buffers[(round+1)%2]
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float64, Count: count,
			Path: bw.harness.Paths[round/2%len(bw.harness.Paths)], Digest: uint64(round),
			Send: src.addressAt(0), Recv: dst.addressAt(0),
			SendWindow: src.window, RecvWindow: dst.window,
		}
		r.must(s.Wait(done))
		r.must(r.queueCall(r.group, s, r.onSupportedPath(r.group, call)))
		r.must(s.Record(done))
	}
	bw.checkPowers(r, buffers[rounds%2], streams, count, rounds)
}

// checkPowers checks that every element is the number of ranks to the power of rounds.
func (bw *bufferWorld) checkPowers(
	r *rank, result buffer, streams [2]driver.Stream, count int64, rounds int,
) {
	for _, s := range streams {
		r.must(s.Synchronize(bw.ctx))
	}
	want := math.Pow(float64(len(bw.ranks)), float64(rounds))
	r.expectBytes(result.addressAt(0), repeatFloat(want, count))
}

func repeatFloat(value float64, count int64) []byte {
	return bytes.Repeat(formula.AppendFloat(nil, driver.Float64, value), int(count))
}
