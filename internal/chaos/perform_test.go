package chaos

import (
	"errors"
	"slices"

	"symmem"
)

// A player performs the ops of a program on one rank. This file contains its methods for each kind
// of op.

// queue performs op o, which has index i in the program. Most ops queue work on a stream. If the
// stream is being captured, the work is recorded in a graph instead.
func (r *player) queue(i int, o *op) error {
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
			_ = g.Close() // the streams have reported faults of the graph
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
		return r.send(i, o, s)
	default:
		isWrong := r.isMakingWrongCall() && i == r.m.opIndex
		return r.work(o, s, isWrong)
	}
}

// allocate allocates a buffer. If shouldComparePlacement is set, the ranks compare its placement.
func (r *player) allocate(number int, s *symmem.Stream) error {
	if err := r.makeBuffer(number, s); err != nil || !r.p.shouldComparePlacement {
		return err
	}

	b := r.buffers[number]
	// The placement is a segment and an offset in it.
	const offsetBits = 40 // more than an offset needs
	placement := int64(b.Segment())<<offsetBits | b.Offset()
	return r.groups[0].Agree(r.ctx, "placement", placement)
}

// recordUses records that an op reads its send buffer on one stream and writes its recv buffer on
// another. All ranks must record the same uses in the same order, even without taking part in the
// call. It records nothing in programs whose ranks queue ops in different orders.
func (r *player) recordUses(o *op, reads, writes *symmem.Stream) error {
	if r.p.orders != nil {
		return nil
	}

	var errs []error
	if b, isPooled := r.buffers[o.send]; isPooled {
		errs = append(errs, b.UseOn(reads))
	}

	if b, isPooled := r.buffers[o.recv]; isPooled {
		errs = append(errs, b.UseOn(writes))
	}

	return errors.Join(errs...)
}

// work queues a collective or a copy. With isWrong, it passes the wrong count or type of the
// mistake.
func (r *player) work(o *op, s *symmem.Stream, isWrong bool) error {
	if !r.p.isMember(r.rt.Rank(), o) {
		return r.recordUses(o, s, s)
	}

	send, recv := r.memory[o.send], r.memory[o.recv]
	n, t := int64(o.count), symmem.Int32
	const elementBytes = 4 // of an int32
	if isWrong && r.m.kind == wrongCount {
		n--
	} else if isWrong { // the kind is wrongType
		t = symmem.Float32
	}

	g := r.groups[o.group]
	switch o.kind {
	case copyOp:
		return r.copy(recv, send, elementBytes*n, s)
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
		n = send.Bytes() / elementBytes / int64(g.Size())
		partBytes := elementBytes * n
		// The output is this rank's part of the input.
		own, err := send.Slice(partBytes*int64(g.Rank()), partBytes)
		if err != nil {
			return err
		}

		return g.ReduceScatter(r.ctx, send, own, n, t, symmem.Sum, s)
	case allToAllV:
		return g.AllToAllV(r.ctx, send, recv, o.parts.splits(r.rt.Rank()), o.parts.dataType(), s)
	default:
		return g.AllToAll(r.ctx, send, recv, n, t, s)
	}
}

// copy queues a copy of the first bytes of src to dst.
func (r *player) copy(dst, src symmem.Memory, bytes int64, s *symmem.Stream) error {
	src, err := src.Slice(0, bytes)
	if err != nil {
		return err
	}

	if dst, err = dst.Slice(0, bytes); err != nil {
		return err
	}

	return s.Copy(dst, src)
}

// splits returns the arguments of a rank's AllToAllV.
func (p *parts) splits(rank int) symmem.Splits {
	return symmem.Splits{
		SendCounts: p.counts[rank], SendOffsets: p.sendOffsets[rank], RecvCounts: p.received(rank),
		RecvOffsets: p.recvOffsets[rank],
	}
}

// dataType returns the type of the elements of an AllToAllV.
func (p *parts) dataType() symmem.DataType {
	if p.isInt64 {
		return symmem.Int64
	}

	return symmem.Uint8
}

// send queues the Send or the Recv of a message on stream s if this rank is its sender or receiver.
// i is the index of o.
func (r *player) send(i int, o *op, s *symmem.Stream) error {
	self, members, m := r.rt.Rank(), r.p.groups[o.group], o.message
	if err := r.recordUses(o, r.streams[o.stream], r.streams[o.recvStream]); err != nil {
		return err
	}

	if self != m.src && self != m.dst {
		return nil
	}

	count, t := int64(o.count), symmem.Uint8 // o.count is in bytes
	if m.isInt32 {
		count, t = count/4, symmem.Int32
	}

	srcGroupRank, dstGroupRank := slices.Index(members, m.src), slices.Index(members, m.dst)
	if self == m.src {
		send := r.memory[o.send]
		return r.groups[o.group].SendTagged(r.ctx, send, count, t, dstGroupRank, m.tag, s)
	}

	call := symmem.Call{
		Operation: symmem.OpRecv, Type: t, Root: srcGroupRank, Tag: m.tag,
		Count: count, Recv: r.memory[o.recv],
	}
	if m.anySource {
		call.Root = symmem.AnySource
		call.Arrived = func(source int) { // called when the message has arrived
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sources[i] = source
		}
	}

	return r.rt.Interop().Do(r.ctx, r.groups[o.group], call, s)
}
