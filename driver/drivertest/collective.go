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

var collectiveClauses = []clause{
	{"a single rank gets the reference's results", coverRanks(1)},
	{"two ranks get the reference's results", coverRanks(2)},
	{"three ranks get the reference's results", coverRanks(3)},
	{"four ranks get the reference's results", coverRanks(4)},
	{"five ranks get the reference's results", coverRanks(5)},
	{"every rank can be the root", testRoots},
	{"buffers need only the alignment of their elements", testSkew},
	{"no rank leaves a barrier before all have entered it", testBarrier},
	{"several streams can use one group", testStreams},
	{"on all ranks, a path gives the same answer to the same call", testOffers},
	{"the first path moves every type and supports the listed reductions", testReductions},
}

// counts lists element counts around the sizes at which a backend may change its algorithm.
var counts = []int64{0, 1, 2, 3, 7, 12, 13, 47, 100, 1023, 4097, 70001}

var dataTypes = reduce.DataTypes()

// fixture is a world with a send and a receive buffer on every rank.
type fixture struct {
	*world
	send, recv []buffer
}

func newFixture(t *testing.T, h Harness, n int, bytes int64, o options) *fixture {
	t.Helper()
	fx := &fixture{world: newWorld(t, h, n, o), send: make([]buffer, n), recv: make([]buffer, n)}
	fx.each(func(r *rank) {
		fx.send[r.number] = r.newWindow(bytes)
		fx.recv[r.number] = r.newWindow(bytes)
	})
	return fx
}

func (fx *fixture) try(tr *trial) {
	fx.t.Helper()
	if !fx.attempt(func(r *rank) { tr.perform(r, fx.send[r.number], fx.recv[r.number]) }) {
		fx.t.Fatalf("%v on %d ranks", tr, len(fx.ranks))
	}
}

// tryVariants runs a trial on each path, in place and out of place, and with unregistered buffers
// on the direct path.
func (fx *fixture) tryVariants(tr trial) {
	fx.t.Helper()
	if !fx.harness.hasOperation(tr.operation) || !fx.exact(&tr) {
		return
	}
	tr.prepare(fx.harness, len(fx.ranks))
	for _, tr.path = range fx.harness.Paths {
		for _, tr.inPlace = range []bool{false, true} {
			for _, tr.unregistered = range []bool{false, true} {
				if fx.supports(&tr) {
					fx.try(&tr)
				}
			}
		}
	}
}

// supports reports whether to try the call on the trial's path. The first path must support every
// call except for reductions that the harness does not list.
func (fx *fixture) supports(tr *trial) bool {
	if tr.unregistered && tr.path != driver.PathDirect {
		return false
	}
	r := fx.ranks[0]
	call := tr.call(r, fx.send[0], fx.recv[0])
	listed := !tr.operation.Reduces() || fx.harness.hasReduction(tr.dataType, tr.op)
	if !listed && r.group.Offer(call).Refusal(call.Path) != nil {
		return false
	}
	return call.Path == tr.path
}

// exact reports whether the contract determines every bit of the result.
func (fx *fixture) exact(tr *trial) bool {
	n := len(fx.ranks)
	return !fx.harness.Unordered || !tr.op.Divides() || n&(n-1) == 0
}

// coverRanks tests all operations on n ranks with every type and count. AllReduce is tried with
// every reduction for three types. Otherwise, successive calls use different reductions.
func coverRanks(n int) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		fx := newFixture(t, h, n, 4<<20, options{check: true})
		for _, dataType := range dataTypes {
			for i, count := range counts {
				if h.skipsTrial(n + i + int(dataType)) {
					continue
				}
				fx.coverReduce(dataType, count, i)
				fx.coverOthers(dataType, count, i)
			}
		}
	}
}

func (fx *fixture) coverReduce(dataType driver.DataType, count int64, index int) {
	fx.t.Helper()
	ops := driver.ReductionsOf(dataType)
	for i, op := range ops {
		switch dataType {
		case driver.Float32, driver.BFloat16, driver.Int8:
		default:
			if i != (index+int(dataType))%len(ops) {
				continue
			}
		}
		fx.tryVariants(trial{operation: driver.AllReduce, dataType: dataType, op: op, count: count})
	}
}

// coverOthers tries other operations, with the large count only for two types.
func (fx *fixture) coverOthers(dataType driver.DataType, count int64, index int) {
	fx.t.Helper()
	ops := driver.ReductionsOf(dataType)
	op := ops[(index+int(dataType))%len(ops)]
	root := (index + int(dataType)) % len(fx.ranks)
	if count > 5000 && dataType != driver.Float64 && dataType != driver.Uint8 {
		return
	}
	for _, o := range []driver.Operation{
		driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast, driver.AllToAll,
		driver.ReduceScatterV, driver.AllGatherV, driver.Gather, driver.Scatter,
	} {
		fx.tryVariants(trial{operation: o, dataType: dataType, op: op, count: count, root: root})
	}
}

func testRoots(t *testing.T, h Harness) {
	const n = 4
	fx := newFixture(t, h, n, 2<<20, options{check: true})
	for root := range n {
		for _, count := range []int64{3, 1000, 70001} {
			for _, o := range []driver.Operation{
				driver.Broadcast, driver.Reduce, driver.Gather, driver.Scatter,
			} {
				fx.tryVariants(trial{operation: o, dataType: driver.Int32, count: count, root: root})
			}
		}
	}
}

func testSkew(t *testing.T, h Harness) {
	fx := newFixture(t, h, 3, 2<<20, options{check: true})
	for i, skew := range []int64{1, 5, 31} {
		for j, dataType := range []driver.DataType{driver.Float32, driver.Float16, driver.Int8} {
			for k, count := range []int64{13, 1001, 40001} {
				if h.skipsTrial(i + j + k) {
					continue
				}
				for o := range driver.AllReduceRMSNorm {
					if o.PointToPoint() || o == driver.Barrier || o == driver.AllToAllV {
						continue
					}
					fx.tryVariants(trial{
						operation: o, dataType: dataType, count: count, skew: skew, root: 1,
					})
				}
			}
		}
	}
}

// testBarrier makes every rank set a flag before it enters the barrier.
func testBarrier(t *testing.T, h Harness) {
	const n, rounds = 4, 200
	fx := newFixture(t, h, n, 1<<20, options{check: true})
	entered := make([][n]atomic.Bool, rounds)
	fx.each(func(r *rank) {
		for round := range rounds {
			entered[round][r.number].Store(true)
			call := driver.Call{Operation: driver.Barrier, Digest: 1}
			r.must(r.launch(r.group, r.stream, call))
			for other := range n {
				if !entered[round][other].Load() {
					r.failf("round %d: left the barrier before rank %d had entered it", round, other)
				}
			}
		}
	})
}

// testStreams alternates between two streams. Each call sends the data that the previous call
// received on the other stream.
func testStreams(t *testing.T, h Harness) {
	const n, count, rounds = 3, 3000, 20
	fx := newFixture(t, h, n, 1<<20, options{check: true})
	fx.each(func(r *rank) {
		fx.alternate(r, [2]driver.Stream{r.stream, r.newStream()}, count, rounds)
	})
}

func (fx *fixture) alternate(r *rank, streams [2]driver.Stream, count int64, rounds int) {
	bufs := [2]buffer{fx.send[r.number], fx.recv[r.number]}
	r.write(bufs[0].addr(0), repeated(1, count))
	done := r.newEvent()
	for round := range rounds {
		s, src, dst := streams[round%2], bufs[round%2], bufs[(round+1)%2]
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float64, Count: count,
			Path: fx.harness.Paths[round/2%len(fx.harness.Paths)], Send: src.addr(0), Recv: dst.addr(0),
			SendWindow: src.window, RecvWindow: dst.window, Digest: uint64(round),
		}
		r.must(s.Wait(done))
		r.must(r.queue(r.group, s, r.onSupportedPath(r.group, call)))
		r.must(s.Record(done))
	}
	fx.checkPowers(r, bufs[rounds%2], streams, count, rounds)
}

// checkPowers checks that every element is the number of ranks to the power of rounds.
func (fx *fixture) checkPowers(
	r *rank, result buffer, streams [2]driver.Stream, count int64, rounds int,
) {
	for _, s := range streams {
		r.must(s.Synchronize(fx.ctx))
	}
	r.expect(result.addr(0), repeated(math.Pow(float64(len(fx.ranks)), float64(rounds)), count))
}

func repeated(value float64, count int64) []byte {
	return bytes.Repeat(formula.AppendFloat(nil, driver.Float64, value), int(count))
}
