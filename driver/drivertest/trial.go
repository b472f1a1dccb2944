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
	operation        driver.Operation
	dataType         driver.DataType
	op               driver.ReduceOp // ignored unless the operation reduces
	count            int64           // see setCounts
	root             int             // ignored unless the operation has a root
	path             driver.Path
	isInPlace        bool
	isUnregistered   bool           // the call has no windows
	shift            int64          // number of elements before the start of each buffer
	formula          driver.Formula // order of additions, which the result must have
	seed             uint64         // of the inputs; not used with AnyFormula
	hasSpecialInputs bool           // inputs such as NaN and infinity, which replace others
	isReplayed       bool           // the call is captured and replayed

	// prepare sets these fields.
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
	tr.inputs = nil
	for r := range n {
		tr.inputs = append(tr.inputs, tr.newInput(h, n, r))
	}

	tr.wantResults = make([][]byte, n)
	part := tr.count * int64(tr.dataType.Size()) // size in bytes
	switch tr.operation {
	case driver.AllReduce:
		whole := tr.reduceInputs()
		tr.setResults(func(int) []byte { return whole })
	case driver.Reduce:
		tr.wantResults[tr.root] = tr.reduceInputs()
	case driver.ReduceScatter:
		whole := tr.reduceInputs()
		tr.setResults(func(r int) []byte { return whole[int64(r)*part:][:part] })
	case driver.ReduceScatterV:
		whole := tr.reduceInputs()
		counts, offsets := tr.splitCounts(n)
		size := int64(tr.dataType.Size())
		tr.setResults(func(r int) []byte { return whole[offsets[r]*size:][:counts[r]*size] })
	case driver.Gather:
		tr.wantResults[tr.root] = slices.Concat(tr.inputs...)
	case driver.Scatter:
		tr.setResults(func(r int) []byte { return tr.inputs[tr.root][int64(r)*part:][:part] })
	case driver.AllGather, driver.AllGatherV:
		whole := slices.Concat(tr.inputs...)
		tr.setResults(func(int) []byte { return whole })
	case driver.Broadcast:
		tr.setResults(func(int) []byte { return tr.inputs[tr.root] })
	case driver.AllToAll:
		tr.setResults(func(r int) []byte {
			var parts [][]byte
			for _, in := range tr.inputs {
				parts = append(parts, in[int64(r)*part:][:part])
			}

			return slices.Concat(parts...)
		})
	// The other operations have no results, or tests that do not use prepare.
	case driver.Barrier, driver.Send, driver.Recv, driver.AllToAllV:
	case driver.AllReduceRMSNorm, driver.ReduceScatterRMSNorm, driver.Dispatch, driver.Combine:
	}
}

// newInput returns the contents of a rank's send buffer, in a group of n ranks.
func (tr *trial) newInput(h Harness, n, rank int) []byte {
	// With elements of one byte, Spans returns numbers of elements.
	shape := driver.Call{Operation: tr.operation, DataType: driver.Int8, Root: tr.root}
	tr.setCounts(&shape, n, rank)
	count, _ := shape.Spans(n, rank)
	switch {
	case tr.hasSpecialInputs:
		return formula.SpecialInput(tr.dataType, rank, count)
	case tr.formula == driver.AnyFormula:
		return input(h, tr.dataType, rank, count)
	default: // inputs for which each formula gives a different result
		return formula.Input(tr.dataType, tr.seed, rank, n, count)
	}
}

// splitCounts returns the counts and offsets of adjacent parts. By rank, a part has half the
// trial's count, all of it, or no elements, in turn.
func (tr *trial) splitCounts(n int) (counts, offsets []int64) {
	end := int64(0)
	for r := range n {
		halves := int64((r + 1) % 3)
		count := tr.count * halves / 2
		counts = append(counts, count)
		offsets = append(offsets, end)
		end += count
	}

	return counts, offsets
}

// setCounts sets Count and Splits of a rank's call, in a group of n ranks.
func (tr *trial) setCounts(call *driver.Call, n, rank int) {
	call.Count = tr.count
	if !tr.operation.SplitsOneBuffer() {
		return
	}

	counts, offsets := tr.splitCounts(n)
	call.Count = counts[rank]
	if tr.operation == driver.AllGatherV {
		call.Splits = &driver.Splits{RecvCounts: counts, RecvOffsets: offsets}
	} else {
		call.Splits = &driver.Splits{SendCounts: counts, SendOffsets: offsets}
	}
}

// reduceInputs returns the expected result of the reduction of all inputs.
func (tr *trial) reduceInputs() []byte {
	return formula.Reduce(tr.formula, tr.op, tr.dataType, tr.inputs)
}

// setResults sets the expected result of each rank r to resultOf(r).
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

// call returns a rank's call on the trial's path. If that path does not support the call, the call
// takes the harness's first path.
func (tr *trial) call(r *rank, send, recv buffer) driver.Call {
	call := r.onSupportedPath(r.group, tr.callOnPath(r, send, recv))
	call.Digest = callDigest(&call)
	return call
}

// callOnPath returns a rank's call on the trial's path, which may not support the call.
func (tr *trial) callOnPath(r *rank, send, recv buffer) driver.Call {
	size := int64(tr.dataType.Size())
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
	if tr.isInPlace {
		tr.placeInPlace(&call, r)
	}

	if tr.isUnregistered {
		call.SendWindow = nil
		call.RecvWindow = nil
	}

	return call
}

// placeInPlace moves one of the call's buffers to the other buffer. A buffer of one part becomes
// this rank's part of the other buffer.
func (tr *trial) placeInPlace(call *driver.Call, r *rank) {
	ownOffset := int64(r.number) * tr.count // of this rank's part, in elements
	if call.Splits != nil {
		_, offsets := tr.splitCounts(len(r.world.ranks))
		ownOffset = offsets[r.number]
	}

	ownBytes := uintptr(ownOffset) * uintptr(tr.dataType.Size())
	send, recv := tr.operation.Extents()
	switch {
	case send == driver.OnePart && recv > driver.OnePart: // Recv has a part for each rank
		call.Send = call.Recv + ownBytes
		call.SendWindow = call.RecvWindow
	case recv == driver.OnePart && send > driver.OnePart: // Send has a part for each rank
		call.Recv = call.Send + ownBytes
		call.RecvWindow = call.SendWindow
	default:
		call.Send = call.Recv
		call.SendWindow = call.RecvWindow
	}
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

// run makes the call on one rank, and checks its result.
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
	launchErr := graph.Launch(r.stream)
	syncErr := r.stream.Synchronize(r.world.ctx)
	closeErr := graph.Close()
	r.must(errors.Join(launchErr, syncErr, closeErr))
}

// checkResult compares the receive buffer and the canaries around it with the expected contents.
// oldContents holds the contents of the receive buffer before an in-place call.
func (tr *trial) checkResult(r *rank, call driver.Call, oldContents []byte) {
	want := tr.wantResults[r.number]
	_, recvBytes := call.Spans(len(r.world.ranks), r.number)
	switch {
	case tr.isInPlace && want == nil:
		r.expectBytes(call.Recv, oldContents)
	case tr.isInPlace: // the surroundings may be inputs
		r.expectBytes(call.Recv, want)
	case want == nil:
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount+recvBytes+canaryCount)
	default:
		r.expectBytes(call.Recv, want)
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount)
		r.expectFilled(call.Recv+uintptr(len(want)), canary, canaryCount)
	}
}
