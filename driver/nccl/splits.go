package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
)

// This file queues collectives for which NCCL has no single call.
//
// Splits divide a rank's buffers into one part for each rank. Their counts and offsets are in
// elements. For example, SendCounts[2] is the number of elements that this rank sends to rank 2.
//
// An AllToAllV runs as one NCCL group, which is a list of calls that NCCL launches together. It has
// a Send and a Recv for each other rank. Each rank copies the part for itself. Gather, Scatter and
// some AllToAll calls run in the same way.

// evenSplits returns the splits of buffers that have a part of count elements for each rank. Sends
// and receives share the slices.
func evenSplits(ranks int, count int64) *driver.Splits {
	counts := make([]int64, ranks)
	offsets := make([]int64, ranks)
	for r := range counts {
		counts[r] = count
		offsets[r] = int64(r) * count
	}

	return &driver.Splits{
		SendCounts: counts, SendOffsets: offsets, RecvCounts: counts, RecvOffsets: offsets,
	}
}

// rootSplits returns a rank's splits of a Gather or Scatter. In a Gather, each rank sends one part
// to the root, and only the root receives parts. A Scatter is the reverse.
func rootSplits(call *driver.Call, ranks, rank int) *driver.Splits {
	const noElements = 0
	onePart := evenSplits(ranks, noElements)
	onePart.SendCounts[call.Root] = call.Count // also in RecvCounts, which is the same slice
	allParts := evenSplits(ranks, noElements)
	if rank == call.Root {
		allParts = evenSplits(ranks, call.Count)
	}

	if call.Operation == driver.Gather {
		return &driver.Splits{
			SendCounts: onePart.SendCounts, SendOffsets: onePart.SendOffsets,
			RecvCounts: allParts.RecvCounts, RecvOffsets: allParts.RecvOffsets,
		}
	}

	return &driver.Splits{
		SendCounts: allParts.SendCounts, SendOffsets: allParts.SendOffsets,
		RecvCounts: onePart.RecvCounts, RecvOffsets: onePart.RecvOffsets,
	}
}

// singleRankSplits returns the splits with which an AllGatherV or ReduceScatterV runs as a copy in
// a group of one rank. s has one count and one offset, for either sending or receiving.
func singleRankSplits(s *driver.Splits) *driver.Splits {
	counts := slices.Concat(s.SendCounts, s.RecvCounts) // one count, because one slice is empty
	single := &driver.Splits{
		SendCounts: counts, SendOffsets: []int64{0}, RecvCounts: counts, RecvOffsets: []int64{0},
	}
	if s.SendOffsets != nil {
		single.SendOffsets = s.SendOffsets
	} else {
		single.RecvOffsets = s.RecvOffsets
	}

	return single
}

// splitBytes is the size of the encoded counts for one rank: a send count and a receive count, as
// 64-bit integers.
const splitBytes = 2 * 8

// encodeSplits encodes the counts for all ranks, for compareSplits on the other ranks.
func encodeSplits(s *driver.Splits) (encoded []byte) {
	for r, sendCount := range s.SendCounts {
		encoded = binary.LittleEndian.AppendUint64(encoded, uint64(sendCount))
		encoded = binary.LittleEndian.AppendUint64(encoded, uint64(s.RecvCounts[r]))
	}

	return encoded
}

// compareSplits returns a MessageError with all pairs of ranks whose sent and expected counts
// differ, or nil. encodedSplits holds each rank's result of encodeSplits, by group rank.
func compareSplits(group *driver.GroupConfig, ticket uint64, encodedSplits [][]byte) error {
	wantBytes := len(group.Ranks) * splitBytes
	for r, encoded := range encodedSplits {
		if len(encoded) != wantBytes {
			return fmt.Errorf("rank %d sent %d bytes of splits, want %d", group.Ranks[r], len(encoded),
				wantBytes)
		}
	}

	mismatch := &driver.MessageError{Fault: driver.SplitsDiffer, Group: group.Name(), Number: ticket}
	for src := range encodedSplits {
		for dst := range encodedSplits {
			// The send count comes first, and the receive count is 8 bytes after it.
			sent := binary.LittleEndian.Uint64(encodedSplits[src][dst*splitBytes:])
			expected := binary.LittleEndian.Uint64(encodedSplits[dst][src*splitBytes+8:])
			if sent != expected {
				mismatch.Ends = append(mismatch.Ends, driver.MessageEnds{
					From: group.Ranks[src], To: group.Ranks[dst], Sent: sent, Received: expected,
				})
			}
		}
	}

	if len(mismatch.Ends) > 0 {
		return mismatch
	}

	return nil
}

// queueParts queues a call that runs as sends and receives of the parts p.parts. It copies the
// input of an in-place AllToAll first, because receives overwrite the input.
func (p *plan) queueParts(stream cuda.Stream) error {
	d := p.c.device
	return d.gpu.Do(func() error {
		bytes, _ := p.Spans(len(p.c.cfg.Ranks), p.c.cfg.Rank)
		isAllToAll := p.Operation == driver.AllToAll || p.Operation == driver.AllToAllV
		mustCopy := isAllToAll && p.send == p.recv && bytes != 0
		if !mustCopy {
			return p.queueSendsAndReceives(p.send, stream)
		}

		inputCopy, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(bytes), stream)
		if err != nil {
			return err
		}

		err = d.gpu.CUDA.MemcpyAsync(inputCopy, p.send, bytes, stream)
		if err == nil {
			err = p.queueSendsAndReceives(inputCopy, stream)
		}

		freeErr := d.gpu.CUDA.MemFreeAsync(inputCopy, stream) // after the queued work
		return errors.Join(err, freeErr)
	})
}

// queueSendsAndReceives queues the copy of this rank's own part, and one NCCL group with the sends
// and receives of the other parts. source is the address of the input. queueSendsAndReceives must
// run in gpu.Do, because an NCCL group belongs to one thread.
func (p *plan) queueSendsAndReceives(source uintptr, stream cuda.Stream) error {
	d := p.c.device
	splits := p.parts
	rank := p.c.cfg.Rank
	size := int64(p.DataType.Size())
	ownBytes := splits.SendCounts[rank] * size
	ownSource := source + uintptr(splits.SendOffsets[rank]*size)
	ownTarget := p.recv + uintptr(splits.RecvOffsets[rank]*size)
	if ownBytes > 0 && ownSource != ownTarget {
		if err := d.gpu.CUDA.MemcpyAsync(ownTarget, ownSource, ownBytes, stream); err != nil {
			return err
		}
	}

	if len(splits.SendCounts) == 1 {
		return nil // the group has no other ranks
	}

	library := d.ncclAnyThread
	err := library.GroupStart()
	if err != nil {
		return err
	}

	// After an error, queue no more calls, but end the NCCL group.
	for r := range splits.SendCounts {
		if r == rank {
			continue
		}

		if count := splits.SendCounts[r]; count > 0 && err == nil {
			from := source + uintptr(splits.SendOffsets[r]*size)
			call := library.Send(from, count, p.dataType, r, p.c.comm.handle)
			err = call.On(stream)
		}

		if count := splits.RecvCounts[r]; count > 0 && err == nil {
			to := p.recv + uintptr(splits.RecvOffsets[r]*size)
			call := library.Recv(to, count, p.dataType, r, p.c.comm.handle)
			err = call.On(stream)
		}
	}

	endErr := library.GroupEnd()
	return errors.Join(err, endErr)
}

// makeUnevenCalls returns the calls of an AllGatherV or ReduceScatterV. Each part that is not empty
// has one call, a Broadcast or a Reduce. NCCL runs all of them as one kernel.
func (p *plan) makeUnevenCalls() []nccl.Invocation {
	library := p.c.device.ncclAnyThread
	comm := p.c.comm.handle
	size := int64(p.DataType.Size())
	calls := []nccl.Invocation{}
	for r := range p.c.cfg.Ranks {
		if p.Operation == driver.AllGatherV {
			if count := p.Splits.RecvCounts[r]; count > 0 {
				part := p.recv + uintptr(p.Splits.RecvOffsets[r]*size)
				// NCCL reads the source only on rank r. This rank's input can be shorter than the
				// part of another rank, so it is the source only of the own part.
				source := part
				if r == p.c.cfg.Rank {
					source = p.send
				}

				calls = append(calls, library.Broadcast(source, part, count, p.dataType, r, comm))
			}
		} else if count := p.Splits.SendCounts[r]; count > 0 {
			part := p.send + uintptr(p.Splits.SendOffsets[r]*size)
			calls = append(calls, library.Reduce(part, p.recv, count, p.dataType, p.reduceOp, r, comm))
		}
	}

	return calls
}

// queueWithFactor queues a reduction with PremulSum: NCCL multiplies each rank's input by a factor
// and adds up the products. For that, it creates a reduction operator in NCCL, which contains the
// factor. NCCL reads the factor while the call is queued, so the operator is destroyed right after
// that, even in a capture.
func (p *plan) queueWithFactor(s cuda.Stream) error {
	library := p.c.device.ncclAnyThread
	comm := p.c.comm.handle
	scaledPlan := *p
	scaledSum, err := library.CreatePreMulSum(p.FactorBits(), p.dataType, comm)
	if err != nil {
		return err
	}

	scaledPlan.reduceOp = scaledSum
	switch {
	case len(p.c.cfg.Ranks) == 1:
		err = scaledPlan.multiply(s)
	case p.Operation.SplitsOneBuffer():
		err = p.c.comm.queueGroup(scaledPlan.makeUnevenCalls(), s)
	default:
		var call nccl.Invocation
		if call, err = scaledPlan.collective(); err == nil {
			err = call.On(s)
		}
	}

	destroyErr := library.DestroyReduceOp(scaledSum, comm)
	return errors.Join(err, destroyErr)
}

// multiply queues a PremulSum in a group of one rank, which only multiplies the input by the
// factor. NCCL with the defect nccl.SkippedTail does not multiply the last elements, the tail, so a
// second call multiplies the tail.
func (p *plan) multiply(s cuda.Stream) error {
	library := p.c.device.ncclAnyThread
	send := p.send
	count := p.count
	size := int64(p.DataType.Size())
	if p.Operation.SplitsOneBuffer() {
		send += uintptr(p.Splits.SendOffsets[0] * size)
		count = p.Splits.SendCounts[0]
	}

	multipliedCount := count // number of elements that the first call multiplies
	version, _ := library.Version()
	if nccl.SkippedTail.Affects(version, p.c.device.gpu.Major) {
		multipliedCount = nccl.MultipliedCount(count, size)
	}

	call := library.AllReduce(send, p.recv, count, p.dataType, p.reduceOp, p.c.comm.handle)
	err := call.On(s)
	if err != nil || multipliedCount == count {
		return err
	}

	tailOffset := uintptr(multipliedCount * size)
	tailCount := count - multipliedCount
	call = library.AllReduce(send+tailOffset, p.recv+tailOffset, tailCount, p.dataType, p.reduceOp,
		p.c.comm.handle)
	return call.On(s)
}
