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

// counts lists element counts below and above the sizes at which a backend may change its
// algorithm, such as those of a cache line, a slice, a small message, and a step.
var counts = []int64{0, 1, 2, 3, 7, 12, 13, 47, 100, 1023, 4097, 70001}

var dataTypes = reduce.DataTypes()

// fixture is a world with a send and a receive buffer on every rank.
type fixture struct {
	*world
	send, recv []buffer
}

func newFixture(t *testing.T, h Harness, n int, bytes int64, o options) *fixture {
	t.Helper()
	b := &fixture{world: newWorld(t, h, n, o), send: make([]buffer, n), recv: make([]buffer, n)}
	b.each(func(r *rank) {
		b.send[r.number] = r.newWindow(bytes)
		b.recv[r.number] = r.newWindow(bytes)
	})
	return b
}

func (b *fixture) try(c *trial) {
	b.t.Helper()
	if !b.attempt(func(r *rank) { c.perform(r, b.send[r.number], b.recv[r.number]) }) {
		b.t.Fatalf("%v on %d ranks", c, len(b.ranks))
	}
}

// tryVariants runs a trial in every variant that the backend supports: on each path, in place and
// out of place, and with unregistered buffers on the direct path.
func (b *fixture) tryVariants(c trial) {
	b.t.Helper()
	if !b.harness.has(c.operation) || !b.exact(&c) {
		return
	}
	c.prepare(b.harness, len(b.ranks))
	for _, c.path = range b.harness.Paths {
		for _, c.inPlace = range []bool{false, true} {
			for _, c.unregistered = range []bool{false, true} {
				if b.supports(&c) {
					b.try(&c)
				}
			}
		}
	}
}

// supports reports whether to try the call on the trial's path. It returns true for unregistered
// buffers only on the direct path. The first path must support every call, except for reductions
// that the harness does not list.
func (b *fixture) supports(c *trial) bool {
	if c.unregistered && c.path != driver.PathDirect {
		return false
	}
	r := b.ranks[0]
	call := c.call(r, b.send[0], b.recv[0])
	listed := !c.operation.Reduces() || b.harness.reduces(c.dataType, c.op)
	if !listed && r.group.Offer(call).Refusal(call.Path) != nil {
		return false
	}
	return call.Path == c.path
}

// exact reports whether the contract determines every bit of the result.
func (b *fixture) exact(c *trial) bool {
	n := len(b.ranks)
	return !b.harness.Unordered || !c.op.Divides() || n&(n-1) == 0
}

// coverRanks tests all operations on n ranks with every type and count. AllReduce is tried with
// every reduction for three of the types; in all other cases, successive calls use different
// reductions.
func coverRanks(n int) func(*testing.T, Harness) {
	return func(t *testing.T, h Harness) {
		b := newFixture(t, h, n, 4<<20, options{check: true})
		for _, dataType := range dataTypes {
			for i, count := range counts {
				if h.skips(n + i + int(dataType)) {
					continue
				}
				b.coverReduce(dataType, count, i)
				b.coverOthers(dataType, count, i)
			}
		}
	}
}

func (b *fixture) coverReduce(dataType driver.DataType, count int64, index int) {
	b.t.Helper()
	ops := driver.ReductionsOf(dataType)
	for i, op := range ops {
		switch dataType {
		case driver.Float32, driver.BFloat16, driver.Int8:
		default:
			if i != (index+int(dataType))%len(ops) {
				continue
			}
		}
		b.tryVariants(trial{operation: driver.AllReduce, dataType: dataType, op: op, count: count})
	}
}

// coverOthers tries the operations other than AllReduce. To save time, it tries the large count
// only with two types.
func (b *fixture) coverOthers(dataType driver.DataType, count int64, index int) {
	b.t.Helper()
	ops := driver.ReductionsOf(dataType)
	op := ops[(index+int(dataType))%len(ops)]
	root := (index + int(dataType)) % len(b.ranks)
	if count > 5000 && dataType != driver.Float64 && dataType != driver.Uint8 {
		return
	}
	for _, o := range []driver.Operation{
		driver.ReduceScatter, driver.Reduce, driver.AllGather, driver.Broadcast, driver.AllToAll,
		driver.ReduceScatterV, driver.AllGatherV, driver.Gather, driver.Scatter,
	} {
		b.tryVariants(trial{operation: o, dataType: dataType, op: op, count: count, root: root})
	}
}

func testRoots(t *testing.T, h Harness) {
	const n = 4
	b := newFixture(t, h, n, 2<<20, options{check: true})
	for root := range n {
		for _, count := range []int64{3, 1000, 70001} {
			for _, o := range []driver.Operation{
				driver.Broadcast, driver.Reduce, driver.Gather, driver.Scatter,
			} {
				b.tryVariants(trial{operation: o, dataType: driver.Int32, count: count, root: root})
			}
		}
	}
}

func testSkew(t *testing.T, h Harness) {
	b := newFixture(t, h, 3, 2<<20, options{check: true})
	for i, skew := range []int64{1, 5, 31} {
		for j, dataType := range []driver.DataType{driver.Float32, driver.Float16, driver.Int8} {
			for k, count := range []int64{13, 1001, 40001} {
				if h.skips(i + j + k) {
					continue
				}
				for o := range driver.AllReduceRMSNorm {
					if o.PointToPoint() || o == driver.Barrier || o == driver.AllToAllV {
						continue
					}
					b.tryVariants(trial{
						operation: o, dataType: dataType, count: count, skew: skew, root: 1,
					})
				}
			}
		}
	}
}

// testBarrier makes every rank set a flag before it enters the barrier, and checks after the
// barrier that the flags of all ranks are set.
func testBarrier(t *testing.T, h Harness) {
	const n, rounds = 4, 200
	b := newFixture(t, h, n, 1<<20, options{check: true})
	entered := make([][n]atomic.Bool, rounds)
	b.each(func(r *rank) {
		for round := range rounds {
			entered[round][r.number].Store(true)
			call := driver.Call{Operation: driver.Barrier, Digest: 1}
			r.ok(r.launch(r.group, r.stream, call))
			for other := range n {
				if !entered[round][other].Load() {
					r.failf("round %d: left the barrier before rank %d had entered it", round, other)
				}
			}
		}
	})
}

// testStreams alternates between two streams. Each call sends the data that the previous call
// received on the other stream, so events must order the streams.
func testStreams(t *testing.T, h Harness) {
	const n, count, rounds = 3, 3000, 20
	b := newFixture(t, h, n, 1<<20, options{check: true})
	b.each(func(r *rank) {
		b.alternate(r, [2]driver.Stream{r.stream, r.newStream()}, count, rounds)
	})
}

func (b *fixture) alternate(r *rank, streams [2]driver.Stream, count int64, rounds int) {
	bufs := [2]buffer{b.send[r.number], b.recv[r.number]}
	r.write(bufs[0].addr(0), repeated(1, count))
	done := r.newEvent()
	for round := range rounds {
		s, src, dst := streams[round%2], bufs[round%2], bufs[(round+1)%2]
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float64, Count: count,
			Path: b.harness.Paths[round/2%len(b.harness.Paths)], Send: src.addr(0), Recv: dst.addr(0),
			SendWindow: src.window, RecvWindow: dst.window, Digest: uint64(round),
		}
		r.ok(s.Wait(done))
		r.ok(r.queue(r.group, s, r.onSupportedPath(r.group, call)))
		r.ok(s.Record(done))
	}
	b.checkPowers(r, bufs[rounds%2], streams, count, rounds)
}

// checkPowers waits for both streams and checks that every element is the number of ranks to the
// power of rounds.
func (b *fixture) checkPowers(
	r *rank, result buffer, streams [2]driver.Stream, count int64, rounds int,
) {
	for _, s := range streams {
		r.ok(s.Synchronize(b.ctx))
	}
	r.expect(result.addr(0), repeated(math.Pow(float64(len(b.ranks)), float64(rounds)), count))
}

func repeated(value float64, count int64) []byte {
	return bytes.Repeat(formula.AppendFloat(nil, driver.Float64, value), int(count))
}
