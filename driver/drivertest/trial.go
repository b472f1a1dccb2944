package drivertest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"symmem/driver"
	"symmem/driver/formula"
)

// trial is a call on all ranks, with the inputs and the expected results.
type trial struct {
	operation      driver.Operation
	dataType       driver.DataType
	op             driver.ReduceOp
	count          int64
	root           int
	path           driver.Path
	isInPlace      bool
	isUnregistered bool  // the call has no windows
	shift          int64 // number of elements before the start of each buffer
	// Each formula (order of additions) other than AnyFormula gives a different result for the
	// inputs that Input draws from seed.
	formula          driver.Formula
	seed             uint64
	hasSpecialInputs bool
	isReplayed       bool // the call is captured and replayed

	inputs      [][]byte // contents of send buffers by rank
	wantResults [][]byte // contents of receive buffers by rank; nil if the call writes nothing
}

func (tr *trial) String() string {
	place := "out of place"
	if tr.isInPlace {
		place = "in place"
	}
	if tr.isUnregistered {
		place += ", unregistered"
	}
	if tr.isReplayed {
		place += ", replayed"
	}
	return fmt.Sprintf("%v %v %v of %d, root %d, path %v, %s, shift %d", tr.operation, tr.dataType,
		tr.op, tr.count, tr.root, tr.path, place, tr.shift)
}

// prepare sets inputs and wantResults for n ranks.
func (tr *trial) prepare(h Harness, n int) {
	tr.inputs, tr.wantResults = nil, make([][]byte, n)
	for r := range n {
		shape := driver.Call{Operation: tr.operation, DataType: driver.Int8, Root: tr.root}
		tr.setCounts(&shape, n, r)
		send, _ := shape.Spans(n, r)
		switch {
		case tr.hasSpecialInputs:
			tr.inputs = append(tr.inputs, formula.SpecialInput(tr.dataType, r, send))
		case tr.formula == driver.AnyFormula:
			tr.inputs = append(tr.inputs, input(h, tr.dataType, r, send))
		default:
			tr.inputs = append(tr.inputs, formula.Input(tr.dataType, tr.seed, r, n, send))
		}
	}
	part := tr.count * int64(tr.dataType.Size())
	switch tr.operation {
	case driver.AllReduce:
		whole := tr.reduceInputs()
		tr.setResults(func(int) []byte { return whole })
	case driver.Reduce:
		tr.wantResults[tr.root] = tr.reduceInputs()
	case driver.ReduceScatter:
		whole := tr.reduceInputs()
		tr.setResults(func(r int) []byte { return whole[int64(r)*part : int64(r+1)*part] })
	case driver.ReduceScatterV:
		whole := tr.reduceInputs()
		counts, offsets := tr.splitCounts(n)
		size := int64(tr.dataType.Size())
		tr.setResults(func(r int) []byte { return whole[offsets[r]*size : (offsets[r]+counts[r])*size] })
	case driver.Gather:
		tr.wantResults[tr.root] = slices.Concat(tr.inputs...)
	case driver.Scatter:
		tr.setResults(func(r int) []byte { return tr.inputs[tr.root][int64(r)*part : int64(r+1)*part] })
	case driver.AllGather, driver.AllGatherV:
		whole := slices.Concat(tr.inputs...)
		tr.setResults(func(int) []byte { return whole })
	case driver.Broadcast:
		tr.setResults(func(int) []byte { return tr.inputs[tr.root] })
	case driver.AllToAll:
		tr.setResults(func(r int) []byte {
			var parts [][]byte
			for _, in := range tr.inputs {
				parts = append(parts, in[int64(r)*part:int64(r+1)*part])
			}
			return slices.Concat(parts...)
		})
	// The other operations have no results, or tests that do not use prepare.
	case driver.Barrier, driver.Send, driver.Recv, driver.AllToAllV:
	case driver.AllReduceRMSNorm, driver.ReduceScatterRMSNorm, driver.Dispatch, driver.Combine:
	}
}

// splitCounts returns counts and offsets of different parts. Some parts are empty, and no part has
// more elements than the trial's count.
func (tr *trial) splitCounts(n int) (counts, offsets []int64) {
	end := int64(0)
	for r := range n {
		count := tr.count * int64((r+1)%3) / 2
		counts, offsets = append(counts, count), append(offsets, end)
		end += count
	}
	return counts, offsets
}

func (tr *trial) setCounts(call *driver.Call, n, rank int) {
	call.Count = tr.count
	if !tr.operation.SplitsOneBuffer() {
		return
	}
	counts, offsets := tr.splitCounts(n)
	call.Count = counts[rank]
	call.Splits = &driver.Splits{SendCounts: counts, SendOffsets: offsets}
	if tr.operation == driver.AllGatherV {
		call.Splits = &driver.Splits{RecvCounts: counts, RecvOffsets: offsets}
	}
}

func (tr *trial) reduceInputs() []byte {
	return formula.Reduce(tr.formula, tr.op, tr.dataType, tr.inputs)
}

func (tr *trial) setResults(resultOf func(r int) []byte) {
	for r := range tr.wantResults {
		tr.wantResults[r] = resultOf(r)
	}
}

const (
	// canary fills receive buffers before a call. Afterwards, the bytes around the result must
	// still be canaries.
	canary = 0xA5
	// canaryCount is the number of canaries before and after a result.
	canaryCount = 64
)

// call returns a rank's call on the trial's path or, if that path does not support the call, on
// the harness's first path.
func (tr *trial) call(r *rank, send, recv buffer) driver.Call {
	call := r.onSupportedPath(r.group, tr.uncheckedCall(r, send, recv))
	call.Digest = callDigest(&call)
	return call
}

// uncheckedCall returns a rank's call on the trial's path, which may not support the call.
func (tr *trial) uncheckedCall(r *rank, send, recv buffer) driver.Call {
	size := int64(tr.dataType.Size())
	partOffset := int64(r.number) * tr.count * size // of this rank's part, in bytes
	start := canaryCount + tr.shift*size
	call := driver.Call{
		Operation: tr.operation, DataType: tr.dataType, ReduceOp: tr.op, Path: tr.path,
		Root: tr.root, Send: send.addressAt(start), Recv: recv.addressAt(start),
		SendWindow: send.window, RecvWindow: recv.window,
	}
	if tr.operation.Reduces() {
		call.Factor = formula.Factor(tr.op)
	}
	tr.setCounts(&call, len(r.world.ranks), r.number)
	if call.Splits != nil {
		_, offsets := tr.splitCounts(len(r.world.ranks))
		partOffset = offsets[r.number] * size
	}
	switch sendExtent, recvExtent := tr.operation.Extents(); {
	case !tr.isInPlace:
	case sendExtent == driver.OnePart && recvExtent > sendExtent:
		call.Send, call.SendWindow = call.Recv+uintptr(partOffset), recv.window
	case recvExtent == driver.OnePart && sendExtent > recvExtent:
		call.Recv, call.RecvWindow = call.Send+uintptr(partOffset), send.window
	default:
		call.Send, call.SendWindow = call.Recv, recv.window
	}
	if tr.isUnregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	return call
}

// callDigest returns a Digest of the arguments that must be the same on all ranks.
func callDigest(c *driver.Call) uint64 {
	h := fnv.New64a()
	d := c.Describe()
	fmt.Fprint(h, d.Operation, d.DataType, c.ReduceOp, c.Factor, d.Path, d.Count, d.Counts)
	if !c.Operation.PointToPoint() {
		fmt.Fprint(h, c.Root)
	}
	return h.Sum64()
}

func (tr *trial) run(r *rank, send, recv buffer) {
	call := tr.call(r, send, recv)
	_, recvBytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, recvBytes+2*canaryCount))
	r.write(call.Send, tr.inputs[r.number])
	var oldContents []byte
	if tr.isInPlace {
		oldContents = slices.Clone(r.read(call.Recv, recvBytes))
	}
	tr.launchOrReplay(r, call)
	tr.checkResult(r, call, oldContents)
}

func (tr *trial) launchOrReplay(r *rank, call driver.Call) {
	if !tr.isReplayed {
		r.must(r.launchAndWait(r.group, r.stream, call))
		return
	}
	graph := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
	err := graph.Launch(r.stream)
	r.must(errors.Join(err, r.stream.Synchronize(r.world.ctx), graph.Close()))
}

// checkResult compares the receive buffer and the canaries around it with the expected contents.
// oldContents holds the contents of the receive buffer before an in-place call.
func (tr *trial) checkResult(r *rank, call driver.Call, oldContents []byte) {
	want := tr.wantResults[r.number]
	switch _, recvBytes := call.Spans(len(r.world.ranks), r.number); {
	case tr.isInPlace && want == nil:
		r.expectBytes(call.Recv, oldContents)
	case tr.isInPlace:
		r.expectBytes(call.Recv, want)
	case want == nil:
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount+recvBytes+canaryCount)
	default:
		r.expectBytes(call.Recv, want)
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount)
		r.expectFilled(call.Recv+uintptr(len(want)), canary, canaryCount)
	}
}
