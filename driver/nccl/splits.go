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

// NCCL runs an AllToAllV as a group with one Send to and one Recv from each other rank. Empty parts
// are skipped, and this rank's own part is copied locally. NCCL treats the group as one collective,
// even during stream capture.

// evenSplits returns the splits of an AllToAll. Each rank sends count elements to every rank.
func evenSplits(ranks int, count int64) *driver.Splits {
	counts, offsets := make([]int64, ranks), make([]int64, ranks)
	for r := range counts {
		counts[r], offsets[r] = count, int64(r)*count
	}
	return &driver.Splits{
		SendCounts: counts, SendOffsets: offsets, RecvCounts: counts, RecvOffsets: offsets,
	}
}

// rootSplits returns the splits of a Gather or Scatter on a rank.
func rootSplits(call *driver.Call, ranks, rank int) *driver.Splits {
	none, all := evenSplits(ranks, 0), evenSplits(ranks, call.Count)
	one := evenSplits(ranks, 0)
	one.SendCounts[call.Root] = call.Count // also sets RecvCounts, which is the same slice
	if rank != call.Root {
		all = none
	}
	if call.Operation == driver.Gather {
		return &driver.Splits{
			SendCounts: one.SendCounts, SendOffsets: one.SendOffsets,
			RecvCounts: all.RecvCounts, RecvOffsets: all.RecvOffsets,
		}
	}
	return &driver.Splits{
		SendCounts: all.SendCounts, SendOffsets: all.SendOffsets,
		RecvCounts: one.RecvCounts, RecvOffsets: one.RecvOffsets,
	}
}

// aloneSplits returns the splits of the copy that an AllGatherV or ReduceScatterV makes in a group
// of one rank.
func aloneSplits(s *driver.Splits) *driver.Splits {
	counts := slices.Concat(s.SendCounts, s.RecvCounts)
	alone := &driver.Splits{
		SendCounts: counts, SendOffsets: []int64{0}, RecvCounts: counts, RecvOffsets: []int64{0},
	}
	if s.SendOffsets != nil {
		alone.SendOffsets = s.SendOffsets
	} else {
		alone.RecvOffsets = s.RecvOffsets
	}
	return alone
}

// splitBytes is the encoded size of a send count and a receive count.
const splitBytes = 2 * 8

// encodeSplits encodes this rank's splits. The other ranks compare them.
func encodeSplits(s *driver.Splits) (encoded []byte) {
	for r, n := range s.SendCounts {
		encoded = binary.LittleEndian.AppendUint64(encoded, uint64(n))
		encoded = binary.LittleEndian.AppendUint64(encoded, uint64(s.RecvCounts[r]))
	}
	return encoded
}

// differingSplits returns an error that names each pair of ranks whose counts differ, or nil. all
// holds the encoded splits of every group rank.
func differingSplits(group *driver.GroupConfig, ticket uint64, all [][]byte) error {
	for r := range all {
		if want := len(group.Ranks) * splitBytes; len(all[r]) != want {
			return fmt.Errorf("rank %d sent %d bytes of splits, want %d", group.Ranks[r],
				len(all[r]), want)
		}
	}
	e := &driver.MessageError{Fault: driver.SplitsDiffer, Group: group.Name(), Number: ticket}
	for from := range all {
		for to := range all {
			sent := binary.LittleEndian.Uint64(all[from][to*splitBytes:])
			expected := binary.LittleEndian.Uint64(all[to][from*splitBytes+8:])
			if sent != expected {
				e.Ends = append(e.Ends, driver.MessageEnds{
					From: group.Ranks[from], To: group.Ranks[to], Sent: sent, Received: expected,
				})
			}
		}
	}
	if len(e.Ends) > 0 {
		return e
	}
	return nil
}

// queueParts queues the sends and receives of the parts. An in-place AllToAll or AllToAllV sends
// from a copy of its input.
func (p *plan) queueParts(on cuda.Stream) error {
	d := p.c.device
	return d.gpu.Do(func() error {
		bytes, _ := p.Spans(len(p.c.cfg.Ranks), p.c.cfg.Rank)
		exchanges := p.Operation == driver.AllToAll || p.Operation == driver.AllToAllV
		if p.send != p.recv || bytes == 0 || !exchanges {
			return p.exchange(p.send, on)
		}
		source, err := d.gpu.CUDA.MemAllocAsync(roundUpForNCCL(bytes), on)
		if err != nil {
			return err
		}
		if err = d.gpu.CUDA.MemcpyAsync(source, p.send, bytes, on); err == nil {
			err = p.exchange(source, on)
		}
		return errors.Join(err, d.gpu.CUDA.MemFreeAsync(source, on))
	})
}

// exchange queues the local copy, the sends and the receives. NCCL groups are per thread, so
// exchange must run in gpu.Do.
func (p *plan) exchange(source uintptr, on cuda.Stream) error {
	d, s, rank := p.c.device, p.parts, p.c.cfg.Rank
	size := int64(p.DataType.Size())
	own := s.SendCounts[rank] * size
	var err error
	from := source + uintptr(s.SendOffsets[rank]*size)
	if to := p.recv + uintptr(s.RecvOffsets[rank]*size); own > 0 && from != to {
		err = d.gpu.CUDA.MemcpyAsync(to, from, own, on)
	}
	if err != nil || len(s.SendCounts) == 1 {
		return err
	}
	n := d.ncclAnyThread
	if err := n.GroupStart(); err != nil {
		return err
	}
	for r := range s.SendCounts {
		if r == rank {
			continue
		}
		if count := s.SendCounts[r]; count > 0 && err == nil {
			call := n.Send(source+uintptr(s.SendOffsets[r]*size), count, p.dataType, r, p.c.comm.handle)
			err = call.On(on)
		}
		if count := s.RecvCounts[r]; count > 0 && err == nil {
			call := n.Recv(p.recv+uintptr(s.RecvOffsets[r]*size), count, p.dataType, r, p.c.comm.handle)
			err = call.On(on)
		}
	}
	return errors.Join(err, n.GroupEnd())
}

// NCCL has no AllGatherV and no ReduceScatterV. Each runs as a group with one Broadcast or Reduce
// for each part, and NCCL fuses the calls of the group into one kernel.

// unevenCalls returns the calls of an AllGatherV or ReduceScatterV, without empty parts.
func (p *plan) unevenCalls() []nccl.Invocation {
	n, comm, size := p.c.device.ncclAnyThread, p.c.comm.handle, int64(p.DataType.Size())
	calls := []nccl.Invocation{}
	for r := range p.c.cfg.Ranks {
		if p.Operation == driver.AllGatherV {
			if count := p.Splits.RecvCounts[r]; count > 0 {
				part := p.recv + uintptr(p.Splits.RecvOffsets[r]*size)
				source := part // this rank's send may be shorter than the part of another rank
				if r == p.c.cfg.Rank {
					source = p.send
				}
				calls = append(calls, n.Broadcast(source, part, count, p.dataType, r, comm))
			}
		} else if count := p.Splits.SendCounts[r]; count > 0 {
			part := p.send + uintptr(p.Splits.SendOffsets[r]*size)
			calls = append(calls, n.Reduce(part, p.recv, count, p.dataType, p.reduceOp, r, comm))
		}
	}
	return calls
}

// queueGroup queues calls as one group. NCCL groups are per thread, so queueGroup runs on the
// device's thread.
func queueGroup(d *Device, calls []nccl.Invocation, on cuda.Stream) error {
	return d.gpu.Do(func() error {
		n := d.ncclAnyThread
		err := n.GroupStart()
		if err != nil {
			return err
		}
		for i := range calls {
			if err == nil {
				err = calls[i].On(on)
			}
		}
		return errors.Join(err, n.GroupEnd())
	})
}

// queueScaled queues a reduction with a factor. NCCL reads the factor during the call, so the
// reduction can be destroyed at once, even if the call is captured.
func (p *plan) queueScaled(on cuda.Stream) error {
	n, comm, scaled := p.c.device.ncclAnyThread, p.c.comm.handle, *p
	op, err := n.CreatePreMulSum(p.FactorBits(), p.dataType, comm)
	if err != nil {
		return err
	}
	scaled.reduceOp = op
	if p.Operation.Uneven() {
		return errors.Join(queueGroup(p.c.device, scaled.unevenCalls(), on), n.DestroyReduceOp(op, comm))
	}
	call, err := scaled.collective()
	if err == nil {
		err = call.On(on)
	}
	return errors.Join(err, n.DestroyReduceOp(op, comm))
}
