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
	// unregistered means that the call does not name the windows of its buffers.
	unregistered bool
	// skew is the number of elements by which all buffers are shifted, which leaves them aligned
	// only to the size of an element.
	skew int64
	// formula is the group's formula. If it is not AnyFormula, inputs are drawn from the seed so
	// that different formulas give different results.
	formula  driver.Formula
	seed     uint64
	special  bool // whether the inputs are special values
	replayed bool // whether the call is captured and replayed

	inputs [][]byte // by rank
	// wants holds the expected contents of each rank's receive buffer, or nil if the call must not
	// write the buffer.
	wants [][]byte
}

func (c *trial) String() string {
	place := "out of place"
	if c.inPlace {
		place = "in place"
	}
	if c.unregistered {
		place += ", unregistered"
	}
	if c.replayed {
		place += ", replayed"
	}
	return fmt.Sprintf("%v %v %v of %d, root %d, path %v, %s, skew %d", c.operation, c.dataType,
		c.op, c.count, c.root, c.path, place, c.skew)
}

func (c *trial) prepare(h Harness, n int) {
	c.inputs, c.wants = nil, make([][]byte, n)
	for r := range n {
		shape := driver.Call{Operation: c.operation, DataType: driver.Int8, Root: c.root}
		c.setCounts(&shape, n, r)
		send, _ := shape.Spans(n, r)
		switch {
		case c.special:
			c.inputs = append(c.inputs, formula.Specials(c.dataType, r, send))
		case c.formula == driver.AnyFormula:
			c.inputs = append(c.inputs, input(h, c.dataType, r, send))
		default:
			c.inputs = append(c.inputs, formula.Input(c.dataType, c.seed, r, n, send))
		}
	}
	part := c.count * int64(c.dataType.Size())
	switch c.operation {
	case driver.AllReduce:
		all := c.combine()
		c.setWants(func(int) []byte { return all })
	case driver.Reduce:
		c.wants[c.root] = c.combine()
	case driver.ReduceScatter:
		all := c.combine()
		c.setWants(func(r int) []byte { return all[int64(r)*part : int64(r+1)*part] })
	case driver.ReduceScatterV:
		all := c.combine()
		counts, offsets := c.parts(n)
		size := int64(c.dataType.Size())
		c.setWants(func(r int) []byte { return all[offsets[r]*size : (offsets[r]+counts[r])*size] })
	case driver.Gather:
		c.wants[c.root] = slices.Concat(c.inputs...)
	case driver.Scatter:
		c.setWants(func(r int) []byte { return c.inputs[c.root][int64(r)*part : int64(r+1)*part] })
	case driver.AllGather, driver.AllGatherV:
		all := slices.Concat(c.inputs...)
		c.setWants(func(int) []byte { return all })
	case driver.Broadcast:
		c.setWants(func(int) []byte { return c.inputs[c.root] })
	case driver.AllToAll:
		c.setWants(func(r int) []byte {
			var parts [][]byte
			for _, in := range c.inputs {
				parts = append(parts, in[int64(r)*part:int64(r+1)*part])
			}
			return slices.Concat(parts...)
		})
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// parts returns the counts and offsets of n parts of different sizes. Some parts are empty, and
// none has more elements than the trial's count.
func (c *trial) parts(n int) (counts, offsets []int64) {
	end := int64(0)
	for r := range n {
		count := c.count * int64((r+1)%3) / 2
		counts, offsets = append(counts, count), append(offsets, end)
		end += count
	}
	return counts, offsets
}

func (c *trial) setCounts(call *driver.Call, n, rank int) {
	call.Count = c.count
	if !c.operation.Uneven() {
		return
	}
	counts, offsets := c.parts(n)
	call.Count = counts[rank]
	call.Splits = &driver.Splits{SendCounts: counts, SendOffsets: offsets}
	if c.operation == driver.AllGatherV {
		call.Splits = &driver.Splits{RecvCounts: counts, RecvOffsets: offsets}
	}
}

func (c *trial) combine() []byte { return formula.Reduce(c.formula, c.op, c.dataType, c.inputs) }

func (c *trial) setWants(want func(r int) []byte) {
	for r := range c.wants {
		c.wants[r] = want(r)
	}
}

const (
	// canary is the byte with which receive buffers are filled before a call. Afterwards, the bytes
	// around the result must still be canaries.
	canary = 0xA5
	// margin is the number of canary bytes before and after a result.
	margin = 64
)

// call returns a rank's call with the given buffers, on a path that supports the call.
func (c *trial) call(r *rank, send, recv buffer) driver.Call {
	call := r.onSupportedPath(r.group, c.uncheckedCall(r, send, recv))
	call.Digest = digest(&call)
	return call
}

// uncheckedCall is like call, but sets no digest and uses the trial's path even if that path does
// not support the call.
func (c *trial) uncheckedCall(r *rank, send, recv buffer) driver.Call {
	size := int64(c.dataType.Size())
	part := int64(r.number) * c.count * size
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.op, Path: c.path, Root: c.root,
		Send: send.addr(margin + c.skew*size), Recv: recv.addr(margin + c.skew*size),
		SendWindow: send.window, RecvWindow: recv.window,
	}
	if c.operation.Reduces() {
		call.Factor = formula.Factor(c.op)
	}
	c.setCounts(&call, len(r.world.ranks), r.number)
	if call.Splits != nil {
		_, offsets := c.parts(len(r.world.ranks))
		part = offsets[r.number] * size
	}
	switch src, dst := c.operation.Extents(); {
	case !c.inPlace:
	case src == driver.OnePart && dst > src:
		call.Send, call.SendWindow = call.Recv+uintptr(part), recv.window
	case dst == driver.OnePart && src > dst:
		call.Recv, call.RecvWindow = call.Send+uintptr(part), send.window
	default:
		call.Send, call.SendWindow = call.Recv, recv.window
	}
	if c.unregistered {
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

func (c *trial) perform(r *rank, send, recv buffer) {
	call := c.call(r, send, recv)
	_, span := call.Spans(len(r.world.ranks), r.number)
	r.ok(r.stream.Fill(call.Recv-margin, canary, span+2*margin))
	r.write(call.Send, c.inputs[r.number])
	var before []byte
	if c.inPlace {
		before = slices.Clone(r.read(call.Recv, span))
	}
	c.launch(r, call)
	c.checkResult(r, call, before)
}

func (c *trial) launch(r *rank, call driver.Call) {
	if !c.replayed {
		r.ok(r.launch(r.group, r.stream, call))
		return
	}
	graph := r.capture(func() { r.ok(r.queue(r.group, r.stream, call)) })
	err := graph.Launch(r.stream)
	r.ok(errors.Join(err, r.stream.Synchronize(r.world.ctx), graph.Close()))
}

// checkResult checks the receive buffer and the bytes around it. On a rank that gets no result, the
// buffer must be unchanged. before holds the buffer's contents before an in-place call.
func (c *trial) checkResult(r *rank, call driver.Call, before []byte) {
	want := c.wants[r.number]
	switch _, span := call.Spans(len(r.world.ranks), r.number); {
	case c.inPlace && want == nil:
		r.expect(call.Recv, before)
	case c.inPlace:
		r.expect(call.Recv, want)
	case want == nil:
		r.expectAll(call.Recv-margin, canary, margin+span+margin)
	default:
		r.expect(call.Recv, want)
		r.expectAll(call.Recv-margin, canary, margin)
		r.expectAll(call.Recv+uintptr(len(want)), canary, margin)
	}
}
