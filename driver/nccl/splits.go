package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
)

// An AllToAllV is a group of NCCL's Send and Recv, one of each for every other rank that has a
// part, and a copy of this rank's own. NCCL takes a group as one collective, in captures too.

// evenSplits are those of an AllToAll with parts of count elements.
func evenSplits(ranks int, count int64) *driver.Splits {
	counts, offsets := make([]int64, ranks), make([]int64, ranks)
	for r := range counts {
		counts[r], offsets[r] = count, int64(r)*count
	}
	return &driver.Splits{
		SendCounts: counts, SendOffsets: offsets, RecvCounts: counts, RecvOffsets: offsets,
	}
}

// splitBytes is what a pair of counts takes in a comparison of splits.
const splitBytes = 2 * 8

// encodeSplits is what a rank tells the others of its splits.
func encodeSplits(s *driver.Splits) (mine []byte) {
	for r, n := range s.SendCounts {
		mine = binary.LittleEndian.AppendUint64(mine, uint64(n))
		mine = binary.LittleEndian.AppendUint64(mine, uint64(s.RecvCounts[r]))
	}
	return mine
}

// differingSplits says which ranks expect something else than their peers send, of what all have
// told: an error, or nil.
func differingSplits(group *driver.GroupConfig, ticket uint64, all [][]byte) error {
	for r := range all {
		if want := len(group.Ranks) * splitBytes; len(all[r]) != want {
			return fmt.Errorf("rank %d of the world compares splits in %d bytes instead of %d",
				group.Ranks[r], len(all[r]), want)
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

// queueParts queues the group of calls, in place from a copy of the input.
func (p *plan) queueParts(on cuda.Stream) error {
	d := p.c.device
	return d.gpu.Do(func() error {
		bytes, _ := p.Spans(len(p.c.cfg.Ranks))
		if p.send != p.recv || bytes == 0 {
			return p.exchange(p.send, on)
		}
		source, err := d.gpu.CUDA.MemAllocAsync(wholeReads(bytes), on)
		if err != nil {
			return err
		}
		if err = d.gpu.CUDA.MemcpyAsync(source, p.send, bytes, on); err == nil {
			err = p.exchange(source, on)
		}
		return errors.Join(err, d.gpu.CUDA.MemFreeAsync(source, on))
	})
}

// exchange makes the group of calls. It is called on a thread of the device, to which NCCL's groups
// belong.
func (p *plan) exchange(source uintptr, on cuda.Stream) error {
	d, s, me := p.c.device, p.parts, p.c.cfg.Rank
	size := int64(p.DataType.Size())
	own := s.SendCounts[me] * size
	var err error
	if own > 0 {
		err = d.gpu.CUDA.MemcpyAsync(p.recv+uintptr(s.RecvOffsets[me]*size),
			source+uintptr(s.SendOffsets[me]*size), own, on)
	}
	if err != nil || len(s.SendCounts) == 1 {
		return err
	}
	n := d.anywhere
	if err := n.GroupStart(); err != nil {
		return err
	}
	for r := range s.SendCounts {
		if r == me {
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
