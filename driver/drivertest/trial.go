package drivertest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"symmem/driver"
	"symmem/driver/formula"
)

// trial describes a collective and its expected result.
type trial struct {
	operation driver.Operation
	dataType  driver.DataType
	op        driver.ReduceOp
	count     int64
	root      int
	path      driver.Path
	inPlace   bool
	// unregistered means that the call does not name the windows, the registrations of its buffers.
	unregistered bool
	// skew is the number of elements by which all buffers are shifted.
	skew int64
	// formula is the group's formula. Unless it is AnyFormula, inputs are drawn from the seed so
	// that different formulas give different results.
	formula  driver.Formula
	seed     uint64
	special  bool // whether the inputs are special values
	replayed bool // whether the call is captured and replayed

	inputs [][]byte // by rank
	// results holds the expected contents of receive buffers, or nil for a buffer that is not
	// written.
	results [][]byte
}

func (tr *trial) String() string {
	place := "out of place"
	if tr.inPlace {
		place = "in place"
	}
	if tr.unregistered {
		place += ", unregistered"
	}
	if tr.replayed {
		place += ", replayed"
	}
	return fmt.Sprintf("%v %v %v of %d, root %d, path %v, %s, skew %d", tr.operation, tr.dataType,
		tr.op, tr.count, tr.root, tr.path, place, tr.skew)
}

func (tr *trial) prepare(h Harness, n int) {
	tr.inputs, tr.results = nil, make([][]byte, n)
	for r := range n {
		shape := driver.Call{Operation: tr.operation, DataType: driver.Int8, Root: tr.root}
		tr.setCounts(&shape, n, r)
		send, _ := shape.Spans(n, r)
		switch {
		case tr.special:
			tr.inputs = append(tr.inputs, formula.Specials(tr.dataType, r, send))
		case tr.formula == driver.AnyFormula:
			tr.inputs = append(tr.inputs, input(h, tr.dataType, r, send))
		default:
			tr.inputs = append(tr.inputs, formula.Input(tr.dataType, tr.seed, r, n, send))
		}
	}
	part := tr.count * int64(tr.dataType.Size())
	switch tr.operation {
	case driver.AllReduce:
		all := tr.combine()
		tr.setResults(func(int) []byte { return all })
	case driver.Reduce:
		tr.results[tr.root] = tr.combine()
	case driver.ReduceScatter:
		all := tr.combine()
		tr.setResults(func(r int) []byte { return all[int64(r)*part : int64(r+1)*part] })
	case driver.ReduceScatterV:
		all := tr.combine()
		counts, offsets := tr.parts(n)
		size := int64(tr.dataType.Size())
		tr.setResults(func(r int) []byte { return all[offsets[r]*size : (offsets[r]+counts[r])*size] })
	case driver.Gather:
		tr.results[tr.root] = slices.Concat(tr.inputs...)
	case driver.Scatter:
		tr.setResults(func(r int) []byte { return tr.inputs[tr.root][int64(r)*part : int64(r+1)*part] })
	case driver.AllGather, driver.AllGatherV:
		all := slices.Concat(tr.inputs...)
		tr.setResults(func(int) []byte { return all })
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
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// parts returns the counts and offsets of n parts. Some parts are empty, and none has more elements
// than the trial's count.
func (tr *trial) parts(n int) (counts, offsets []int64) {
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
	if !tr.operation.Uneven() {
		return
	}
	counts, offsets := tr.parts(n)
	call.Count = counts[rank]
	call.Splits = &driver.Splits{SendCounts: counts, SendOffsets: offsets}
	if tr.operation == driver.AllGatherV {
		call.Splits = &driver.Splits{RecvCounts: counts, RecvOffsets: offsets}
	}
}

func (tr *trial) combine() []byte {
	return formula.Reduce(tr.formula, tr.op, tr.dataType, tr.inputs)
}

func (tr *trial) setResults(want func(r int) []byte) {
	for r := range tr.results {
		tr.results[r] = want(r)
	}
}

const (
	// canary fills receive buffers before a call. Afterwards, the bytes around the result must
	// still be canaries.
	canary = 0xA5
	// margin is the number of canaries before and after a result.
	margin = 64
)

// call returns a rank's call on a path that supports it.
func (tr *trial) call(r *rank, send, recv buffer) driver.Call {
	call := r.onSupportedPath(r.group, tr.uncheckedCall(r, send, recv))
	call.Digest = digest(&call)
	return call
}

// uncheckedCall uses the trial's path even if that path does not support the call.
func (tr *trial) uncheckedCall(r *rank, send, recv buffer) driver.Call {
	size := int64(tr.dataType.Size())
	part := int64(r.number) * tr.count * size
	call := driver.Call{
		Operation: tr.operation, DataType: tr.dataType, ReduceOp: tr.op, Path: tr.path, Root: tr.root,
		Send: send.addr(margin + tr.skew*size), Recv: recv.addr(margin + tr.skew*size),
		SendWindow: send.window, RecvWindow: recv.window,
	}
	if tr.operation.Reduces() {
		call.Factor = formula.Factor(tr.op)
	}
	tr.setCounts(&call, len(r.world.ranks), r.number)
	if call.Splits != nil {
		_, offsets := tr.parts(len(r.world.ranks))
		part = offsets[r.number] * size
	}
	switch src, dst := tr.operation.Extents(); {
	case !tr.inPlace:
	case src == driver.OnePart && dst > src:
		call.Send, call.SendWindow = call.Recv+uintptr(part), recv.window
	case dst == driver.OnePart && src > dst:
		call.Recv, call.RecvWindow = call.Send+uintptr(part), send.window
	default:
		call.Send, call.SendWindow = call.Recv, recv.window
	}
	if tr.unregistered {
		call.SendWindow, call.RecvWindow = nil, nil
	}
	return call
}

func digest(c *driver.Call) uint64 {
	h := fnv.New64a()
	d := c.Describe()
	fmt.Fprint(h, d.Operation, d.DataType, c.ReduceOp, c.Factor, d.Path, d.Count, d.Counts)
	if !c.Operation.PointToPoint() {
		fmt.Fprint(h, c.Root)
	}
	return h.Sum64()
}

func (tr *trial) perform(r *rank, send, recv buffer) {
	call := tr.call(r, send, recv)
	_, span := call.Spans(len(r.world.ranks), r.number)
	r.must(r.stream.Fill(call.Recv-margin, canary, span+2*margin))
	r.write(call.Send, tr.inputs[r.number])
	var before []byte
	if tr.inPlace {
		before = slices.Clone(r.read(call.Recv, span))
	}
	tr.launch(r, call)
	tr.checkResult(r, call, before)
}

func (tr *trial) launch(r *rank, call driver.Call) {
	if !tr.replayed {
		r.must(r.launch(r.group, r.stream, call))
		return
	}
	graph := r.capture(func() { r.must(r.queue(r.group, r.stream, call)) })
	err := graph.Launch(r.stream)
	r.must(errors.Join(err, r.stream.Synchronize(r.world.ctx), graph.Close()))
}

// checkResult checks the receive buffer and the bytes around it. before holds the buffer's contents
// before an in-place call.
func (tr *trial) checkResult(r *rank, call driver.Call, before []byte) {
	want := tr.results[r.number]
	switch _, span := call.Spans(len(r.world.ranks), r.number); {
	case tr.inPlace && want == nil:
		r.expect(call.Recv, before)
	case tr.inPlace:
		r.expect(call.Recv, want)
	case want == nil:
		r.expectAll(call.Recv-margin, canary, margin+span+margin)
	default:
		r.expect(call.Recv, want)
		r.expectAll(call.Recv-margin, canary, margin)
		r.expectAll(call.Recv+uintptr(len(want)), canary, margin)
	}
}
