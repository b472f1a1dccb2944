package host

import (
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// Collectives through staging work on any memory. In each step every rank copies one chunk of its
// input into its staging buffer of that step (or into its line, if it is small), posts, waits for
// the others, and reads its share from their buffers. With two alternating buffers one barrier per
// step suffices.

// contributes reports whether this rank has anything to give.
func (c *communicator) contributes(call *plan) bool {
	switch call.Operation {
	case driver.Broadcast:
		return call.Root == c.cfg.Rank
	case driver.Barrier:
		return false
	default:
		return call.Count > 0
	}
}

// contribute makes the step for the elements from `from` on.
func (c *communicator) contribute(call *plan, from int64) {
	if !c.contributes(call) {
		c.Post(call.Digest, nil, 0)
		return
	}
	send := pointer(call.Send)
	if bytes := call.bytes; bytes <= spin.LinePayload {
		c.Post(call.Digest, send, int(bytes))
		return
	}
	size := call.size
	count := min(call.chunk, call.Count-from)
	stage := unsafe.Add(c.ownStage, ((c.Step()+1)&1)*stageBytes)
	for part := range call.parts {
		reduce.Copy(unsafe.Add(stage, part*count*size),
			unsafe.Add(send, (part*call.Count+from)*size), int(count*size), reduce.Hint{})
	}
	c.Post(call.Digest, nil, 0)
}

// finishStaged takes the first chunk and moves all others.
func (c *communicator) finishStaged(call *plan, ticket uint64) error {
	c.take(call, 0)
	for from := call.chunk; from < call.Count; from += call.chunk {
		c.contribute(call, from)
		if err := c.arrive(&call.Call, ticket); err != nil {
			return err
		}
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
		c.take(call, from)
	}
	return nil
}

// staged is where a rank's contribution of the current step can be read.
func (c *communicator) staged(call *plan, rank int) unsafe.Pointer {
	switch {
	case call.bytes > spin.LinePayload:
		return c.stage(rank, c.Step())
	case rank == c.cfg.Rank:
		return pointer(call.Send)
	default:
		return unsafe.Pointer(&c.payloads[rank])
	}
}

// unpack copies the peers' payloads out of their lines. Kernels read whole vectors, and from a line
// one would reach into the next, which may be in its owner's cache. This rank's own line is never
// read back: the store to it is still propagating to the peers, and the load would wait for it.
func (c *communicator) unpack() {
	for r := range c.Size() {
		if r != c.cfg.Rank {
			c.payloads[r].payload = *c.Payload(r)
		}
	}
}

// take makes this rank's part of the result from everybody's chunk.
func (c *communicator) take(call *plan, from int64) {
	size := call.size
	count := min(call.chunk, call.Count-from)
	bytes := int(count * size)
	recv := unsafe.Add(pointer(call.Recv), from*size)
	if call.bytes <= spin.LinePayload {
		c.unpack()
	}
	switch call.Operation {
	case driver.AllReduce:
		c.takeReduced(call, recv, 0, count)
	case driver.Reduce:
		if call.Root == c.cfg.Rank {
			c.takeReduced(call, recv, 0, count)
		}
	case driver.ReduceScatter:
		c.takeReduced(call, recv, int64(c.cfg.Rank)*int64(bytes), count)
	case driver.Broadcast:
		reduce.Copy(recv, c.staged(call, call.Root), bytes, reduce.Hint{})
	case driver.AllGather, driver.AllToAll:
		mine := int64(0)
		if call.Operation == driver.AllToAll {
			mine = int64(c.cfg.Rank) * int64(bytes)
		}
		for r := range c.Size() {
			reduce.Copy(unsafe.Add(recv, int64(r)*call.Count*size),
				unsafe.Add(c.staged(call, r), mine), bytes, reduce.Hint{})
		}
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

func (c *communicator) takeReduced(
	call *plan, recv unsafe.Pointer, offset, count int64,
) {
	if count == 0 {
		return
	}
	for r := range c.Size() {
		c.sources[r] = unsafe.Add(c.staged(call, r), offset)
	}
	c.destinations[0] = recv
	c.reduce(call, c.Size(), 1, count, 0)
}

// Collectives over windows read and write the buffers of peers directly, between two barriers:
// after the first every rank's input is ready, after the second no rank accesses another's memory.

// move does the work between the barriers.
func (c *communicator) move(call *plan) {
	size := call.size
	switch call.Operation {
	case driver.AllReduce:
		if call.oneShot {
			c.reduceAll(call)
		} else {
			c.reduceSlice(call, c.Size())
		}
	case driver.Reduce:
		c.reduceSlice(call, 1)
	case driver.ReduceScatter:
		c.reducePart(call)
	case driver.Broadcast:
		if c.cfg.Rank != call.Root || call.Send != call.Recv {
			c.pull(call, call.Root, 0, 0, call.Count*size, call.Count*size)
		}
	case driver.AllGather:
		part := call.Count * size
		for i := range c.Size() {
			r := (c.cfg.Rank + i) % c.Size()
			c.pull(call, r, c.gatheredAt(call, r), int64(r)*part, part,
				part*int64(c.Size()))
		}
	case driver.AllToAll:
		part := call.Count * size
		for i := range c.Size() {
			r := (c.cfg.Rank + i) % c.Size()
			c.pull(call, r, int64(c.cfg.Rank)*part, int64(r)*part, part,
				part*int64(c.Size()))
		}
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// gatheredAt is where a peer's part of an AllGather lies, as seen from this rank's send buffer. In
// place, each rank's part lies where it belongs in the receive buffer.
func (c *communicator) gatheredAt(call *plan, r int) int64 {
	part := call.Count * call.size
	if call.Send != call.Recv+uintptr(int64(c.cfg.Rank)*part) {
		return 0
	}
	return int64(r-c.cfg.Rank) * part
}

// pull copies from a peer's send buffer to this rank's receive buffer.
func (c *communicator) pull(call *plan, r int, from, to, bytes, total int64) {
	src := unsafe.Add(call.send.at(r, call.Send), from)
	dst := unsafe.Add(pointer(call.Recv), to)
	if src != dst {
		reduce.Copy(dst, src, int(bytes), reduce.Hint{Stream: total >= streamBytes})
	}
}

// reduceSlice reduces this rank's slice of the buffer from all windows and stores it into the
// receive buffers of all ranks, or of the root only. It works in place, because no other rank
// accesses this slice.
func (c *communicator) reduceSlice(call *plan, receivers int) {
	from, count := c.slice(call)
	if count == 0 {
		return
	}
	offset := uintptr(from * call.size)
	send, recv := call.send, call.recv
	for r := range c.Size() {
		c.sources[r] = send.at(r, call.Send+offset)
	}
	c.destinations[0] = recv.at(call.Root%c.Size(), call.Recv+offset)
	for i := range receivers {
		if receivers > 1 {
			c.destinations[i] = recv.at((c.cfg.Rank+i)%c.Size(), call.Recv+offset)
		}
	}
	c.reduce(call, c.Size(), receivers, count, call.Count*call.size)
}

// reduceAll reduces the whole buffer from all windows for this rank alone.
func (c *communicator) reduceAll(call *plan) {
	for r := range c.Size() {
		c.sources[r] = call.send.at(r, call.Send)
	}
	c.destinations[0] = pointer(call.Recv)
	c.reduce(call, c.Size(), 1, call.Count, 0)
}

// sliceBytes is the granularity of slices: two cache lines, so that no two ranks write to one line.
const sliceBytes = 128

// slice returns the elements that this rank reduces.
func (c *communicator) slice(call *plan) (from, count int64) {
	n, unit := int64(c.Size()), int64(sliceBytes/call.DataType.Size())
	per := (call.Count/n + unit - 1) / unit * unit
	from = min(per*int64(c.cfg.Rank), call.Count)
	if int64(c.cfg.Rank) == n-1 {
		return from, call.Count - from
	}
	return from, min(per, call.Count-from)
}

// reducePart reduces this rank's part of everybody's send buffer.
func (c *communicator) reducePart(call *plan) {
	part := call.Count * call.size
	send := call.send
	for r := range c.Size() {
		c.sources[r] = send.at(r, call.Send+uintptr(int64(c.cfg.Rank)*part))
	}
	c.destinations[0] = pointer(call.Recv)
	c.reduce(call, c.Size(), 1, call.Count, part*int64(c.Size()))
}

// prefetchStage fetches the first line of the staging that this rank writes in the next step from
// the peers while the rank does other things. They need it no more: who has posted the current step
// has read the one before.
func (c *communicator) prefetchStage() {
	spin.PrefetchWrite(unsafe.Add(c.ownStage, ((c.Step()+1)&1)*stageBytes))
}

// arrive waits for everybody's line.
func (c *communicator) arrive(call *driver.Call, ticket uint64) error {
	if c.ArriveBriefly(true) {
		c.prefetchStage()
		return nil
	}
	return c.ArriveSlowly(call, ticket)
}

// reduce combines n sources into m destinations, both already in place.
func (c *communicator) reduce(call *plan, sources, destinations int, count, total int64) {
	dsts, srcs := c.destinations[:destinations], c.sources[:sources]
	hint := reduce.Hint{Stream: total >= streamBytes}
	if f := c.cfg.Formula; f == driver.Tree || f == driver.RoundedTree {
		c.reduceTree(call, dsts, srcs, int(count))
		return
	}
	if call.ReduceOp.Divides() {
		reduce.Average(call.DataType, dsts, srcs, int(count), hint)
		return
	}
	reduce.Reduce(call.ReduceOp.Combine(), call.DataType, dsts, srcs, int(count), hint)
}

// reduceTree is reduce for a group whose formula is a tree. Integers give the same result in any
// order.
func (c *communicator) reduceTree(call *plan, dsts, srcs []unsafe.Pointer, count int) {
	tree := reduce.Tree{
		Op: call.ReduceOp.Combine(), Average: call.ReduceOp.Divides(), T: call.DataType,
		Rounded: c.cfg.Formula == driver.RoundedTree,
	}
	tree.Reduce(dsts, srcs, count)
}
