package drivertest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"symmem/driver"
	"symmem/driver/formula"
)

// collectiveCase describes a collective and its expected result.
type collectiveCase struct {
	operation driver.Operation
	dataType  driver.DataType
	op        driver.ReduceOp
	count     int64
	root      int
	path      driver.Path
	isInPlace bool
	// isUnregistered means that SendWindow and RecvWindow are not set.
	isUnregistered bool
	// shift is the number of elements before the start of each buffer.
	shift int64
	// formula is the group's formula, the order in which it reduces the ranks' numbers. Unless it
	// is AnyFormula, different formulas give different results for the inputs, which are drawn from
	// seed.
	formula          driver.Formula
	seed             uint64
	hasSpecialInputs bool // whether the inputs are special values
	isReplayed       bool // whether the call is captured and replayed

	inputs [][]byte // by rank
	// wantResults holds the expected contents of receive buffers. An entry is nil if the call does
	// not write the buffer.
	wantResults [][]byte
}

func (tc *collectiveCase) String() string {
	place := "out of place"
	if tc.isInPlace {
		place = "in place"
	}
	if tc.isUnregistered {
		place += ", unregistered"
	}
	if tc.isReplayed {
		place += ", replayed"
	}
	return fmt.Sprintf("%v %v %v of %d, root %d, path %v, %s, shift %d", tc.operation, tc.dataType,
		tc.op, tc.count, tc.root, tc.path, place, tc.shift)
}

func (tc *collectiveCase) setInputsAndResults(h Harness, n int) {
	tc.inputs, tc.wantResults = nil, make([][]byte, n)
	for r := range n {
		shape := driver.Call{Operation: tc.operation, DataType: driver.Int8, Root: tc.root}
		tc.setCounts(&shape, n, r)
		send, _ := shape.Spans(n, r)
		switch {
		case tc.hasSpecialInputs:
			tc.inputs = append(tc.inputs, formula.Specials(tc.dataType, r, send))
		case tc.formula == driver.AnyFormula:
			tc.inputs = append(tc.inputs, input(h, tc.dataType, r, send))
		default:
			tc.inputs = append(tc.inputs, formula.Input(tc.dataType, tc.seed, r, n, send))
		}
	}
	part := tc.count * int64(tc.dataType.Size())
	switch tc.operation {
	case driver.AllReduce:
		whole := tc.reduceInputs()
		tc.setResults(func(int) []byte { return whole })
	case driver.Reduce:
		tc.wantResults[tc.root] = tc.reduceInputs()
	case driver.ReduceScatter:
		whole := tc.reduceInputs()
		tc.setResults(func(r int) []byte { return whole[int64(r)*part : int64(r+1)*part] })
	case driver.ReduceScatterV:
		whole := tc.reduceInputs()
		counts, offsets := tc.partCounts(n)
		size := int64(tc.dataType.Size())
		tc.setResults(func(r int) []byte { return whole[offsets[r]*size : (offsets[r]+counts[r])*size] })
	case driver.Gather:
		tc.wantResults[tc.root] = slices.Concat(tc.inputs...)
	case driver.Scatter:
		tc.setResults(func(r int) []byte { return tc.inputs[tc.root][int64(r)*part : int64(r+1)*part] })
	case driver.AllGather, driver.AllGatherV:
		whole := slices.Concat(tc.inputs...)
		tc.setResults(func(int) []byte { return whole })
	case driver.Broadcast:
		tc.setResults(func(int) []byte { return tc.inputs[tc.root] })
	case driver.AllToAll:
		tc.setResults(func(r int) []byte {
			var partCounts [][]byte
			for _, in := range tc.inputs {
				partCounts = append(partCounts, in[int64(r)*part:int64(r+1)*part])
			}
			return slices.Concat(partCounts...)
		})
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// partCounts returns the counts and offsets of n parts. Some parts are empty, and no part has more
// elements than the case's count.
func (tc *collectiveCase) partCounts(n int) (counts, offsets []int64) {
	end := int64(0)
	for r := range n {
		count := tc.count * int64((r+1)%3) / 2
		counts, offsets = append(counts, count), append(offsets, end)
		end += count
	}
	return counts, offsets
}

func (tc *collectiveCase) setCounts(call *driver.Call, n, rank int) {
	call.Count = tc.count
	if !tc.operation.Uneven() {
		return
	}
	counts, offsets := tc.partCounts(n)
	call.Count = counts[rank]
	call.Splits = &driver.Splits{SendCounts: counts, SendOffsets: offsets}
	if tc.operation == driver.AllGatherV {
		call.Splits = &driver.Splits{RecvCounts: counts, RecvOffsets: offsets}
	}
}

func (tc *collectiveCase) reduceInputs() []byte {
	return formula.Reduce(tc.formula, tc.op, tc.dataType, tc.inputs)
}

func (tc *collectiveCase) setResults(resultOf func(r int) []byte) {
	for r := range tc.wantResults {
		tc.wantResults[r] = resultOf(r)
	}
}

const (
	// canary fills receive buffers before a call. Afterwards, the bytes around the result must
	// still be canaries.
	canary = 0xA5
	// canaryCount is the number of canaries before and after a result.
	canaryCount = 64
)

// call returns a rank's call on the case's path or, if that path does not support the call, on the
// harness's first path.
func (tc *collectiveCase) call(r *rank, send, recv buffer) driver.Call {
	call := r.onSupportedPath(r.group, tc.uncheckedCall(r, send, recv))
	call.Digest = callDigest(&call)
	return call
}

// uncheckedCall returns a rank's call on the case's path, which may not support the call.
func (tc *collectiveCase) uncheckedCall(r *rank, send, recv buffer) driver.Call {
	size := int64(tc.dataType.Size())
	part := int64(r.number) * tc.count * size
	call := driver.Call{
		Operation: tc.operation, DataType: tc.dataType, ReduceOp: tc.op, Path: tc.path,
		Root:       tc.root,
		Send:       send.addressAt(canaryCount + tc.shift*size),
		Recv:       recv.addressAt(canaryCount + tc.shift*size),
		SendWindow: send.window, RecvWindow: recv.window,
	}
	if tc.operation.Reduces() {
		call.Factor = formula.Factor(tc.op)
	}
	tc.setCounts(&call, len(r.world.ranks), r.number)
	if call.Splits != nil {
		_, offsets := tc.partCounts(len(r.world.ranks))
		part = offsets[r.number] * size
	}
	switch src, dst := tc.operation.Extents(); {
	case !tc.isInPlace:
	case src == driver.OnePart && dst > src:
		call.Send, call.SendWindow = call.Recv+uintptr(part), recv.window
	case dst == driver.OnePart && src > dst:
		call.Recv, call.RecvWindow = call.Send+uintptr(part), send.window
	default:
		call.Send, call.SendWindow = call.Recv, recv.window
	}
	if tc.isUnregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	return call
}

func callDigest(c *driver.Call) uint64 {
	h := fnv.New64a()
	d := c.Describe()
	fmt.Fprint(h, d.Operation, d.DataType, c.ReduceOp, c.Factor, d.Path, d.Count, d.Counts)
	if !c.Operation.PointToPoint() {
		fmt.Fprint(h, c.Root)
	}
	return h.Sum64()
}

func (tc *collectiveCase) run(r *rank, send, recv buffer) {
	call := tc.call(r, send, recv)
	_, recvBytes := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-canaryCount, canary, recvBytes+2*canaryCount))
	r.write(call.Send, tc.inputs[r.number])
	var oldContents []byte
	if tc.isInPlace {
		oldContents = slices.Clone(r.read(call.Recv, recvBytes))
	}
	tc.launchOrReplay(r, call)
	tc.checkResult(r, call, oldContents)
}

func (tc *collectiveCase) launchOrReplay(r *rank, call driver.Call) {
	if !tc.isReplayed {
		r.must(r.launchAndWait(r.group, r.stream, call))
		return
	}
	graph := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
	err := graph.Launch(r.stream)
	r.must(errors.Join(err, r.stream.Synchronize(r.world.ctx), graph.Close()))
}

// checkResult checks the receive buffer and the bytes around it. before holds the buffer's contents
// before an in-place call.
func (tc *collectiveCase) checkResult(r *rank, call driver.Call, oldContents []byte) {
	resultOf := tc.wantResults[r.number]
	switch _, recvBytes := call.Spans(len(r.world.ranks), r.number); {
	case tc.isInPlace && resultOf == nil:
		r.expectBytes(call.Recv, oldContents)
	case tc.isInPlace:
		r.expectBytes(call.Recv, resultOf)
	case resultOf == nil:
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount+recvBytes+canaryCount)
	default:
		r.expectBytes(call.Recv, resultOf)
		r.expectFilled(call.Recv-canaryCount, canary, canaryCount)
		r.expectFilled(call.Recv+uintptr(len(resultOf)), canary, canaryCount)
	}
}
