package host

import (
	"unsafe"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// Staged collectives work on any memory. In each step every rank copies one chunk of its input to
// its staging buffer for that step, or to its line if the whole input fits into the line. The rank
// then posts the step, waits for the other ranks, and reads its share from their buffers. Since two
// buffers alternate, one barrier per step suffices.

// mover moves and reduces the data of collectives. Only the collective that has the turn uses it.
type mover struct {
	group *shm.Group
	cfg   *driver.GroupConfig
	rank  int // group rank of this process

	stages       []unsafe.Pointer // staging buffers by group rank
	ownStage     unsafe.Pointer
	payloads     []payloadCopy // by group rank
	sources      [reduce.MaxSources]unsafe.Pointer
	destinations [reduce.MaxDestinations]unsafe.Pointer
}

// payloadCopy holds a peer's payload, copied from its line.
type payloadCopy struct {
	payload [spin.LinePayload]byte
	_       [spin.LineBytes - spin.LinePayload]byte
}

// init assigns the first part of the group's data to the staging buffers.
func (m *mover) init(g *shm.Group, cfg *driver.GroupConfig) {
	m.group, m.cfg, m.rank = g, cfg, cfg.Rank
	m.stages, m.payloads = make([]unsafe.Pointer, g.Size()), make([]payloadCopy, g.Size())
	for r := range m.stages {
		m.stages[r] = unsafe.Add(g.Data(), r*2*stageBytes)
	}
	m.ownStage = m.stages[m.rank]
}

// stage returns a rank's staging buffer for a step. It computes the address instead of selecting a
// struct field: for a field, Go would check the pointer for nil with a load from a line that a peer
// is about to write.
func (m *mover) stage(rank int, step uint64) unsafe.Pointer {
	return unsafe.Add(m.stages[rank], (step&1)*stageBytes)
}

// contributes reports whether this rank contributes data to the call.
func (m *mover) contributes(call *plan) bool {
	switch call.Operation {
	case driver.Broadcast:
		return call.Root == m.rank
	case driver.Barrier:
		return false
	default:
		return call.Count > 0
	}
}

// contribute stages the chunk that begins at element from and posts the step.
func (m *mover) contribute(call *plan, from int64) {
	if !m.contributes(call) {
		m.group.Post(call.Digest, nil, 0)
		return
	}
	send := pointer(call.Send)
	if bytes := call.bytes; bytes <= spin.LinePayload {
		m.group.Post(call.Digest, send, int(bytes))
		return
	}
	size := call.size
	count := min(call.chunk, call.Count-from)
	stage := unsafe.Add(m.ownStage, ((m.group.Step()+1)&1)*stageBytes)
	for part := range call.parts {
		reduce.Copy(unsafe.Add(stage, part*count*size),
			unsafe.Add(send, (part*call.Count+from)*size), int(count*size), reduce.Hint{})
	}
	m.group.Post(call.Digest, nil, 0)
}

// finishStaged completes a staged collective after the first step.
func (m *mover) finishStaged(call *plan, ticket uint64) error {
	m.compute(call, 0)
	for from := call.chunk; from < call.Count; from += call.chunk {
		m.contribute(call, from)
		if err := m.arrive(&call.Call, ticket); err != nil {
			return err
		}
		if err := m.group.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
		m.compute(call, from)
	}
	return nil
}

// staged returns the address of a rank's contribution to the current step.
func (m *mover) staged(call *plan, rank int) unsafe.Pointer {
	switch {
	case call.bytes > spin.LinePayload:
		return m.stage(rank, m.group.Step())
	case rank == m.rank:
		return pointer(call.Send)
	default:
		return unsafe.Pointer(&m.payloads[rank])
	}
}

// unpack copies the peers' payloads from their lines. Reductions read whole vectors, so without the
// copy they would read past a line into the next one, which may be in its owner's cache. unpack
// does not read this rank's own line, since the load would wait until the preceding store has
// propagated to the peers.
func (m *mover) unpack() {
	for r := range len(m.stages) {
		if r != m.rank {
			m.payloads[r].payload = *m.group.Payload(r)
		}
	}
}

// compute computes this rank's part of the result from the chunks of all ranks.
func (m *mover) compute(call *plan, from int64) {
	size := call.size
	count := min(call.chunk, call.Count-from)
	bytes := int(count * size)
	recv := unsafe.Add(pointer(call.Recv), from*size)
	if call.bytes <= spin.LinePayload {
		m.unpack()
	}
	switch call.Operation {
	case driver.AllReduce:
		m.reduceStaged(call, recv, 0, count)
	case driver.Reduce:
		if call.Root == m.rank {
			m.reduceStaged(call, recv, 0, count)
		}
	case driver.ReduceScatter:
		m.reduceStaged(call, recv, int64(m.rank)*int64(bytes), count)
	case driver.Broadcast:
		reduce.Copy(recv, m.staged(call, call.Root), bytes, reduce.Hint{})
	case driver.AllGather, driver.AllToAll:
		mine := int64(0)
		if call.Operation == driver.AllToAll {
			mine = int64(m.rank) * int64(bytes)
		}
		for r := range len(m.stages) {
			reduce.Copy(unsafe.Add(recv, int64(r)*call.Count*size),
				unsafe.Add(m.staged(call, r), mine), bytes, reduce.Hint{})
		}
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// reduceStaged reduces count elements at an offset in the staged chunks of all ranks.
func (m *mover) reduceStaged(call *plan, recv unsafe.Pointer, offset, count int64) {
	if count == 0 {
		return
	}
	for r := range len(m.stages) {
		m.sources[r] = unsafe.Add(m.staged(call, r), offset)
	}
	m.destinations[0] = recv
	m.reduce(call, len(m.stages), 1, count, 0)
}

// Collectives over windows read and write the buffers of peers directly, between two barriers.
// After the first barrier the inputs of all ranks are ready; after the second one no rank still
// accesses another rank's memory.

// move moves the data between the barriers.
func (m *mover) move(call *plan) {
	size := call.size
	switch call.Operation {
	case driver.AllReduce:
		if call.oneShot {
			m.reduceAll(call)
		} else {
			m.reduceSlice(call, len(m.stages))
		}
	case driver.Reduce:
		m.reduceSlice(call, 1)
	case driver.ReduceScatter:
		m.reducePart(call)
	case driver.Broadcast:
		if m.rank != call.Root || call.Send != call.Recv {
			m.pull(call, call.Root, 0, 0, call.Count*size, call.Count*size)
		}
	case driver.AllGather:
		part := call.Count * size
		for i := range len(m.stages) {
			r := (m.rank + i) % len(m.stages)
			m.pull(call, r, m.gatheredAt(call, r), int64(r)*part, part,
				part*int64(len(m.stages)))
		}
	case driver.AllToAll:
		part := call.Count * size
		for i := range len(m.stages) {
			r := (m.rank + i) % len(m.stages)
			m.pull(call, r, int64(m.rank)*part, int64(r)*part, part,
				part*int64(len(m.stages)))
		}
	case driver.Barrier, driver.Send, driver.Recv, driver.AllReduceRMSNorm, driver.AllToAllV:
	}
}

// gatheredAt returns the offset of a peer's part of an AllGather relative to this rank's send
// buffer. If the call is in place, each rank's part is at its final position in the receive buffer.
func (m *mover) gatheredAt(call *plan, r int) int64 {
	part := call.Count * call.size
	if call.Send != call.Recv+uintptr(int64(m.rank)*part) {
		return 0
	}
	return int64(r-m.rank) * part
}

// pull copies from a peer's send buffer to this rank's receive buffer.
func (m *mover) pull(call *plan, r int, from, to, bytes, total int64) {
	src := unsafe.Add(call.send.at(r, call.Send), from)
	dst := unsafe.Add(pointer(call.Recv), to)
	if src != dst {
		reduce.Copy(dst, src, int(bytes), reduce.Hint{Stream: total >= streamBytes})
	}
}

// reduceSlice reduces this rank's slice of the buffer from all windows and stores the result into
// the receive buffers of all ranks, or only into the root's. The call may be in place, because no
// other rank accesses this slice.
func (m *mover) reduceSlice(call *plan, receivers int) {
	from, count := m.slice(call)
	if count == 0 {
		return
	}
	offset := uintptr(from * call.size)
	send, recv := call.send, call.recv
	for r := range len(m.stages) {
		m.sources[r] = send.at(r, call.Send+offset)
	}
	m.destinations[0] = recv.at(call.Root%len(m.stages), call.Recv+offset)
	for i := range receivers {
		if receivers > 1 {
			m.destinations[i] = recv.at((m.rank+i)%len(m.stages), call.Recv+offset)
		}
	}
	m.reduce(call, len(m.stages), receivers, count, call.Count*call.size)
}

// reduceAll reduces the whole buffer from all windows for this rank alone.
func (m *mover) reduceAll(call *plan) {
	for r := range len(m.stages) {
		m.sources[r] = call.send.at(r, call.Send)
	}
	m.destinations[0] = pointer(call.Recv)
	m.reduce(call, len(m.stages), 1, call.Count, 0)
}

// sliceBytes is the granularity of slices. It is two cache lines. Two ranks thus never write to the
// same line.
const sliceBytes = 128

// slice returns the elements that this rank reduces.
func (m *mover) slice(call *plan) (from, count int64) {
	n, unit := int64(len(m.stages)), int64(sliceBytes/call.DataType.Size())
	per := (call.Count/n + unit - 1) / unit * unit
	from = min(per*int64(m.rank), call.Count)
	if int64(m.rank) == n-1 {
		return from, call.Count - from
	}
	return from, min(per, call.Count-from)
}

// reducePart reduces this rank's part of the send buffers of all ranks.
func (m *mover) reducePart(call *plan) {
	part := call.Count * call.size
	send := call.send
	for r := range len(m.stages) {
		m.sources[r] = send.at(r, call.Send+uintptr(int64(m.rank)*part))
	}
	m.destinations[0] = pointer(call.Recv)
	m.reduce(call, len(m.stages), 1, call.Count, part*int64(len(m.stages)))
}

// prefetchStage prefetches the first line of the staging buffer for the next step, in parallel
// with other work. Peers that have posted the current step no longer read this buffer.
func (m *mover) prefetchStage() {
	spin.PrefetchWrite(unsafe.Add(m.ownStage, ((m.group.Step()+1)&1)*stageBytes))
}

// arrive waits for the lines of all ranks.
func (m *mover) arrive(call *driver.Call, ticket uint64) error {
	if m.group.ArriveBriefly(true) {
		m.prefetchStage()
		return nil
	}
	return m.group.ArriveSlowly(call, ticket)
}

// reduce reduces the first m.sources to the first m.destinations.
func (m *mover) reduce(call *plan, sources, destinations int, count, total int64) {
	dsts, srcs := m.destinations[:destinations], m.sources[:sources]
	hint := reduce.Hint{Stream: total >= streamBytes}
	if f := m.cfg.Formula; f == driver.Tree || f == driver.RoundedTree {
		m.reduceTree(call, dsts, srcs, int(count))
		return
	}
	switch {
	case call.ReduceOp.Divides():
		reduce.Average(call.DataType, dsts, srcs, int(count), hint)
	case call.ReduceOp.Scales():
		reduce.ScaledSum(call.DataType, dsts, srcs, int(count), call.Factor, hint)
	default:
		reduce.Reduce(call.ReduceOp.Combine(), call.DataType, dsts, srcs, int(count), hint)
	}
}

// reduceTree reduces in the order of a tree. For integers the order does not change the result.
func (m *mover) reduceTree(call *plan, dsts, srcs []unsafe.Pointer, count int) {
	tree := reduce.Tree{
		Op: call.ReduceOp.Combine(), Average: call.ReduceOp.Divides(), T: call.DataType,
		Rounded: m.cfg.Formula == driver.RoundedTree, Scaled: call.ReduceOp.Scales(),
		Factor: call.Factor,
	}
	tree.Reduce(dsts, srcs, count)
}
