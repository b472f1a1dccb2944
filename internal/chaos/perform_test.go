package chaos

import (
	"errors"
	"slices"

	"symmem"
)

// queue performs op o of the program. index is the index of the op.
func (r *player) queue(index int, o *op) error {
	s := r.streams[o.streamOf(r.rt.Rank())]
	switch o.kind {
	case allocOp:
		return r.allocate(o.recv, s)
	case freeOp:
		b := r.buffers[o.recv]
		delete(r.buffers, o.recv)
		r.memory[o.recv] = symmem.Memory{}
		return b.Free()
	case captureOp:
		return r.capture(o.graph)
	case syncOp:
		return s.Synchronize(r.ctx)
	case closeGraphsOp:
		for _, g := range r.keptGraphs {
			_ = g.Close() // its streams have reported any error already
		}

		r.keptGraphs = nil
		return nil
	case recordOp:
		return s.Record(r.events[o.event])
	case waitOp:
		return s.Wait(r.events[o.event])
	case launchOp:
		return r.graphs[o.graph].Launch(s)
	case sendOp:
		return r.queueMessage(index, o, s)
	default: // a collective or a copy
		makeMistake := r.isMakingWrongCall() && index == r.m.opIndex
		return r.work(o, s, makeMistake)
	}
}

// allocate allocates a buffer. If shouldComparePlacement is set, it checks that all ranks have
// chosen the same segment and offset.
func (r *player) allocate(number int, s *symmem.Stream) error {
	err := r.makeBuffer(number, s)
	if err != nil || !r.p.shouldComparePlacement {
		return err
	}

	b := r.buffers[number]
	const offsetBits = 40 // more than an offset needs
	placement := int64(b.Segment())<<offsetBits | b.Offset()
	return r.groups[0].Agree(r.ctx, "placement", placement)
}

// recordUses records that streams use the buffers of op o. Ranks that do not take part in the op
// call it, too, because a pool requires the same uses in the same order on all ranks.
func (r *player) recordUses(o *op, readStream, writeStream *symmem.Stream) error {
	hasOrderPerRank := r.p.orders != nil
	if hasOrderPerRank {
		return nil // makeBuffer has recorded all possible uses
	}

	var readErr, writeErr error
	if b, isPooled := r.buffers[o.send]; isPooled {
		readErr = b.UseOn(readStream)
	}

	if b, isPooled := r.buffers[o.recv]; isPooled {
		writeErr = b.UseOn(writeStream)
	}

	return errors.Join(readErr, writeErr)
}

// work queues a collective or a copy. If makeMistake is set, its count or type is wrong.
func (r *player) work(o *op, s *symmem.Stream, makeMistake bool) error {
	if !r.p.isMember(r.rt.Rank(), o) {
		return r.recordUses(o, s, s)
	}

	const elementBytes = 4
	send := r.memory[o.send]
	recv := r.memory[o.recv]
	n := int64(o.count)
	t := symmem.Int32
	if makeMistake && r.m.kind == wrongCount {
		n--
	}

	if makeMistake && r.m.kind == wrongType {
		t = symmem.Float32
	}

	g := r.groups[o.group]
	switch o.kind {
	case copyOp:
		return queueCopy(recv, send, elementBytes*n, s)
	case allReduce:
		return g.AllReduce(r.ctx, send, recv, n, t, o.reduce, s)
	case allGather:
		return g.AllGather(r.ctx, send, recv, n, t, s)
	case reduceScatter:
		return g.ReduceScatter(r.ctx, send, recv, n, t, o.reduce, s)
	case broadcast:
		return g.Broadcast(r.ctx, send, recv, n, t, o.root, s)
	case reduce:
		return g.Reduce(r.ctx, send, recv, n, t, o.reduce, o.root, s)
	case tallyOp:
		return r.tally(g, send, s)
	case allToAllV:
		return g.AllToAllV(r.ctx, send, recv, o.parts.splits(r.rt.Rank()), o.parts.dataType(), s)
	default: // allToAll
		return g.AllToAll(r.ctx, send, recv, n, t, s)
	}
}

// tally queues a ReduceScatter in place: each rank's result replaces its part of m.
func (r *player) tally(g *symmem.Group, m symmem.Memory, s *symmem.Stream) error {
	const int32Bytes = 4
	partCount := m.Bytes() / int32Bytes / int64(g.Size())
	partBytes := int32Bytes * partCount
	ownPart, err := m.Slice(partBytes*int64(g.Rank()), partBytes)
	if err != nil {
		return err
	}

	return g.ReduceScatter(r.ctx, m, ownPart, partCount, symmem.Int32, symmem.Sum, s)
}

// queueCopy queues a copy of the first bytes of src to dst.
func queueCopy(dst, src symmem.Memory, bytes int64, s *symmem.Stream) error {
	from, err := src.Slice(0, bytes)
	if err != nil {
		return err
	}

	to, err := dst.Slice(0, bytes)
	if err != nil {
		return err
	}

	return s.Copy(to, from)
}

func (p *parts) splits(rank int) symmem.Splits {
	return symmem.Splits{
		SendCounts:  p.counts[rank],
		SendOffsets: p.sendOffsets[rank],
		RecvCounts:  p.received(rank),
		RecvOffsets: p.recvOffsets[rank],
	}
}

func (p *parts) dataType() symmem.DataType {
	if p.isInt64 {
		return symmem.Int64
	}

	return symmem.Uint8
}

// queueMessage queues the Send of op o on the sender, and the Recv on the receiver. index is the
// index of the op.
func (r *player) queueMessage(index int, o *op, s *symmem.Stream) error {
	if err := r.recordUses(o, r.streams[o.stream], r.streams[o.recvStream]); err != nil {
		return err
	}

	m := o.message
	count := int64(o.count) // in bytes
	t := symmem.Uint8
	if m.isInt32 {
		const int32Bytes = 4
		count /= int32Bytes
		t = symmem.Int32
	}

	g := r.groups[o.group]
	worldRanks := r.p.groups[o.group]
	srcInGroup := slices.Index(worldRanks, m.src)
	dstInGroup := slices.Index(worldRanks, m.dst)
	switch r.rt.Rank() {
	case m.src:
		return g.SendTagged(r.ctx, r.memory[o.send], count, t, dstInGroup, m.tag, s)
	case m.dst:
		call := symmem.Call{
			Operation: symmem.OpRecv, Type: t, Root: srcInGroup, Tag: m.tag,
			Count: count, Recv: r.memory[o.recv],
		}
		if m.anySource {
			call.Root = symmem.AnySource
			call.Arrived = func(source int) { r.recordSource(index, source) }
		}

		return r.rt.Interop().Do(r.ctx, g, call, s)
	default:
		return nil
	}
}

// recordSource records which group rank sent the message that a Recv from AnySource received.
// symmem may call it on any goroutine.
func (r *player) recordSource(opIndex, source int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sources[opIndex] = source
}
