package host

import (
	"unsafe"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// Staged collectives work on any memory. In each step, every rank copies a chunk of its input to
// its staging buffer, posts the step by writing a cache line, waits for the other ranks, and reads
// its share from their buffers. Ranks alternate between two buffers, so one barrier per step is
// enough. An input that fits into the cache line is not staged.

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

type payloadCopy struct {
	payload [spin.LinePayload]byte
	_       [spin.LineBytes - spin.LinePayload]byte
}

func (m *mover) init(g *shm.Group, cfg *driver.GroupConfig) {
	m.group, m.cfg, m.rank = g, cfg, cfg.Rank
	m.stages, m.payloads = make([]unsafe.Pointer, g.Size()), make([]payloadCopy, g.Size())
	for r := range m.stages {
		m.stages[r] = unsafe.Add(g.Data(), r*stagingBytes)
	}

	m.ownStage = m.stages[m.rank]
}

// Reading the address from a struct would be slower, because Go's nil check would load a cache line
// that a peer is about to write.
func (m *mover) stage(rank int, step uint64) unsafe.Pointer {
	return unsafe.Add(m.stages[rank], (step&1)*stageBytes)
}

func (m *mover) hasInput(call *plan) bool {
	switch call.Operation {
	case driver.Broadcast, driver.Scatter:
		return call.Root == m.rank
	case driver.Barrier:
		return false
	default:
		return call.longestPart > 0
	}
}

// stageAndPost stages the chunk that begins at element first and posts the step.
func (m *mover) stageAndPost(call *plan, first int64) {
	if !m.hasInput(call) {
		m.group.Post(call.Digest, nil, 0)
		return
	}

	send := pointer(call.Send)
	if call.isLineSized {
		m.group.Post(call.Digest, send, int(call.bytes))
		return
	}

	size := call.elementSize
	stride := min(call.chunkLength, call.longestPart-first)
	stage := unsafe.Add(m.ownStage, ((m.group.Step()+1)&1)*stageBytes)
	for part := range call.partCount {
		offset, count := call.sendPart(part)
		if count = min(stride, count-first); count > 0 {
			reduce.Copy(unsafe.Add(stage, part*stride*size),
				unsafe.Add(send, (offset+first)*size), int(count*size), reduce.Hint{})
		}
	}

	m.group.Post(call.Digest, nil, 0)
}

func (m *mover) finishStaged(call *plan, ticket uint64) error {
	m.compute(call, 0)
	for first := call.chunkLength; first < call.longestPart; first += call.chunkLength {
		m.stageAndPost(call, first)
		if err := m.waitForStep(&call.Call, ticket); err != nil {
			return err
		}

		if err := m.group.CompareStep(&call.Call, ticket); err != nil {
			return err
		}

		m.compute(call, first)
	}

	return nil
}

func (m *mover) inputAddress(call *plan, rank int) unsafe.Pointer {
	switch {
	case !call.isLineSized:
		return m.stage(rank, m.group.Step())
	case rank == m.rank:
		return pointer(call.Send)
	default:
		return unsafe.Pointer(&m.payloads[rank])
	}
}

// copyPayloads copies the peers' payloads from their lines, because reductions read whole vectors,
// past the end of a line. It skips this rank's line: loading it would stall until its last store
// has reached the peers.
func (m *mover) copyPayloads() {
	for r := range len(m.stages) {
		if r != m.rank {
			m.payloads[r].payload = *m.group.Payload(r)
		}
	}
}

// compute computes this rank's part of the result from all ranks' chunks, which begin at element
// first.
func (m *mover) compute(call *plan, first int64) {
	// stride is the distance between the parts of a chunk.
	stride, size := min(call.chunkLength, call.longestPart-first), call.elementSize
	count := min(stride, call.Count-first)
	recv := unsafe.Add(pointer(call.Recv), first*size)
	if call.isLineSized {
		m.copyPayloads()
	}

	switch call.Operation {
	case driver.AllReduce, driver.AllReduceRMSNorm:
		m.reduceStaged(call, recv, 0, count)
	case driver.Reduce:
		if call.Root == m.rank {
			m.reduceStaged(call, recv, 0, count)
		}
	case driver.ReduceScatter, driver.ReduceScatterV, driver.ReduceScatterRMSNorm:
		m.reduceStaged(call, recv, int64(m.rank)*stride*size, count)
	case driver.Broadcast:
		reduce.Copy(recv, m.inputAddress(call, call.Root), int(count*size), reduce.Hint{})
	case driver.Scatter:
		own := unsafe.Add(m.inputAddress(call, call.Root), int64(m.rank)*stride*size)
		reduce.Copy(recv, own, int(count*size), reduce.Hint{})
	case driver.AllGather, driver.AllGatherV:
		m.collectStaged(call, recv, 0, first, stride)
	case driver.Gather:
		if call.Root == m.rank {
			m.collectStaged(call, recv, 0, first, stride)
		}
	case driver.AllToAll:
		m.collectStaged(call, recv, int64(m.rank)*stride*size, first, stride)
	case driver.Barrier, driver.Send, driver.Recv, driver.AllToAllV:
	case driver.Dispatch, driver.Combine: // see routedPlan
	}
}

// collectStaged copies up to stride elements from every rank's chunk, which begins at element
// first. offset is in bytes. recv is the address of that element in the first part of the receive
// buffer.
func (m *mover) collectStaged(call *plan, recv unsafe.Pointer, offset, first, stride int64) {
	for r := range len(m.stages) {
		partStart, count := call.recvPart(r)
		if count = min(stride, count-first); count > 0 {
			reduce.Copy(unsafe.Add(recv, partStart*call.elementSize),
				unsafe.Add(m.inputAddress(call, r), offset), int(count*call.elementSize),
				reduce.Hint{})
		}
	}
}

func (m *mover) reduceStaged(call *plan, recv unsafe.Pointer, offset, count int64) {
	if count <= 0 {
		return
	}

	for r := range len(m.stages) {
		m.sources[r] = unsafe.Add(m.inputAddress(call, r), offset)
	}

	m.destinations[0] = recv
	m.reduce(call, len(m.stages), 1, count, 0)
}

// move runs a collective over windows, which map the segments of all ranks. The caller must
// synchronize the ranks before and after it.
func (m *mover) move(call *plan) {
	size := call.elementSize
	switch call.Operation {
	case driver.AllReduce, driver.AllReduceRMSNorm:
		if call.reduceWhole {
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
			m.copyFromPeer(call, call.Root, 0, 0, call.Count*size, call.Count*size)
		}
	case driver.AllGather:
		part := call.Count * size
		for i := range len(m.stages) {
			r := (m.rank + i) % len(m.stages)
			m.copyFromPeer(call, r, m.gatheredOffset(call, r), int64(r)*part, part,
				part*int64(len(m.stages)))
		}
	case driver.AllToAll:
		part := call.Count * size
		for i := range len(m.stages) {
			r := (m.rank + i) % len(m.stages)
			m.copyFromPeer(call, r, int64(m.rank)*part, int64(r)*part, part,
				part*int64(len(m.stages)))
		}

	// without windows
	case driver.AllGatherV, driver.ReduceScatterV, driver.ReduceScatterRMSNorm:
	case driver.Gather, driver.Scatter:
	case driver.Barrier, driver.Send, driver.Recv, driver.AllToAllV:
	case driver.Dispatch, driver.Combine:
	}
}

// gatheredOffset returns the offset of rank r's part of an AllGather relative to this rank's send
// buffer. In an in-place call, each part is already in the receive buffer.
func (m *mover) gatheredOffset(call *plan, r int) int64 {
	part := call.Count * call.elementSize
	if call.Send != call.Recv+uintptr(int64(m.rank)*part) {
		return 0
	}

	return int64(r-m.rank) * part
}

func (m *mover) copyFromPeer(call *plan, r int, srcOffset, dstOffset, bytes, total int64) {
	src := unsafe.Add(call.send.addressOn(r, call.Send), srcOffset)
	dst := unsafe.Add(pointer(call.Recv), dstOffset)
	if src != dst {
		reduce.Copy(dst, src, int(bytes), reduce.Hint{Stream: total >= streamBytes})
	}
}

// reduceSlice reduces this rank's slice of all buffers, and stores the result on the root if
// receivers is 1, and otherwise on all ranks. The call may be in place, because no other rank
// accesses this slice.
func (m *mover) reduceSlice(call *plan, receivers int) {
	first, count := m.slice(call)
	if count == 0 {
		return
	}

	offset := uintptr(first * call.elementSize)
	send, recv := call.send, call.recv
	for r := range len(m.stages) {
		m.sources[r] = send.addressOn(r, call.Send+offset)
	}

	m.destinations[0] = recv.addressOn(call.Root%len(m.stages), call.Recv+offset)
	for i := range receivers {
		if receivers > 1 {
			m.destinations[i] = recv.addressOn((m.rank+i)%len(m.stages), call.Recv+offset)
		}
	}

	m.reduce(call, len(m.stages), receivers, count, call.Count*call.elementSize)
}

func (m *mover) reduceAll(call *plan) {
	for r := range len(m.stages) {
		m.sources[r] = call.send.addressOn(r, call.Send)
	}

	m.destinations[0] = pointer(call.Recv)
	m.reduce(call, len(m.stages), 1, call.Count, 0)
}

// Slices are multiples of two cache lines, so that two ranks never write to the same line.
const sliceBytes = 128

func (m *mover) slice(call *plan) (first, count int64) {
	n, unit := int64(len(m.stages)), int64(sliceBytes/call.DataType.Size())
	perRank := (call.Count/n + unit - 1) / unit * unit
	first = min(perRank*int64(m.rank), call.Count)
	if int64(m.rank) == n-1 {
		return first, call.Count - first
	}

	return first, min(perRank, call.Count-first)
}

func (m *mover) reducePart(call *plan) {
	part := call.Count * call.elementSize
	send := call.send
	for r := range len(m.stages) {
		m.sources[r] = send.addressOn(r, call.Send+uintptr(int64(m.rank)*part))
	}

	m.destinations[0] = pointer(call.Recv)
	m.reduce(call, len(m.stages), 1, call.Count, part*int64(len(m.stages)))
}

func (m *mover) prefetchStage() {
	spin.PrefetchWrite(unsafe.Add(m.ownStage, ((m.group.Step()+1)&1)*stageBytes))
}

func (m *mover) waitForStep(call *driver.Call, ticket uint64) error {
	if m.group.AwaitLinesBriefly(true) {
		m.prefetchStage()
		return nil
	}

	return m.group.AwaitLinesSlowly(call, ticket)
}

func (m *mover) reduce(call *plan, sources, destinations int, count, total int64) {
	dsts, srcs := m.destinations[:destinations], m.sources[:sources]
	hint := reduce.Hint{Stream: total >= streamBytes}
	if f := m.cfg.Formula; f == driver.Tree || f == driver.RoundedTree {
		m.reduceTree(call, dsts, srcs, int(count))
		return
	}

	switch {
	case call.ReduceOp.IsAverage():
		reduce.Average(call.DataType, dsts, srcs, int(count), hint)
	case call.ReduceOp.HasFactor():
		reduce.ScaledSum(call.DataType, dsts, srcs, int(count), call.Factor, hint)
	default:
		reduce.Reduce(call.ReduceOp.Combine(), call.DataType, dsts, srcs, int(count), hint)
	}
}

func (m *mover) reduceTree(call *plan, dsts, srcs []unsafe.Pointer, count int) {
	tree := reduce.Tree{
		Op: call.ReduceOp.Combine(), IsAverage: call.ReduceOp.IsAverage(), DataType: call.DataType,
		IsRounded: m.cfg.Formula == driver.RoundedTree, IsScaled: call.ReduceOp.HasFactor(),
		Factor: call.Factor,
	}
	tree.Reduce(dsts, srcs, count)
}
