package host

import (
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// Collectives over windows read and write the buffers of peers directly, between two barriers:
// after the first everybody's input is ready, after the second nobody touches anybody's memory.

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
// receive buffers of all ranks, or of the root only. In place is fine: nobody else reads or
// writes this slice.
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

// sliceBytes is what slices are cut to: two cache lines, so that ranks never write to one line.
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
