package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV copies data in steps through the ranks' staging buffers. In the first step, every
// rank publishes its splits, from which all ranks compute what each rank stages in each step. A
// rank whose send buffer is in a window stages no data, but publishes the buffer's position.

// splitTable is at the start of a rank's staging buffer.
type splitTable struct {
	// If isInWindow is 1, the other ranks read the send buffer at offset in the window of pool and
	// segment.
	isInWindow    uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow counts the elements that a rank sends to one peer and expects from it. sendOffset, in
// elements, is the position of the sent part in the send buffer.
type splitRow struct{ send, recv, sendOffset uint64 }

type splitExchange struct {
	mover          *mover
	registry       *registry
	source         unsafe.Pointer // the send buffer, or a copy of it in an in-place call
	unstagedCounts []int64        // by sender and receiver
	partsOffset    int64          // of the first part in a staging buffer
}

func tableBytes(ranks int) int64 {
	const line = lineStride
	bytes := int64(unsafe.Offsetof(splitTable{}.rows)) +
		int64(ranks)*int64(unsafe.Sizeof(splitRow{}))
	return (bytes + line - 1) / line * line
}

func (s *splitExchange) table(rank int, step uint64) *splitTable {
	return (*splitTable)(s.mover.stage(rank, step))
}

func (s *splitExchange) postSplits(call *plan) {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	if s.unstagedCounts == nil {
		s.unstagedCounts, s.partsOffset = make([]int64, ranks*ranks), tableBytes(ranks)
	}
	clear(s.unstagedCounts)
	s.source = pointer(call.Send)
	if call.Send == call.Recv && call.bytes > 0 {
		copied := make([]byte, call.bytes)
		s.source = unsafe.Pointer(&copied[0])
		reduce.Copy(s.source, pointer(call.Send), len(copied), reduce.Hint{})
	}
	t := s.table(ownRank, m.group.Step()+1)
	t.isInWindow = 0
	for r := range ranks {
		t.rows[r] = splitRow{
			send: uint64(call.Splits.SendCounts[r]), recv: uint64(call.Splits.RecvCounts[r]),
			sendOffset: uint64(call.Splits.SendOffsets[r]),
		}
		if r != ownRank && call.send == nil {
			s.unstagedCounts[ownRank*ranks+r] = call.Splits.SendCounts[r]
		}
	}
	if call.send != nil {
		key := call.send.key
		t.isInWindow, t.pool = 1, key.Pool
		t.segment = uint64(key.Ordinal)
		t.offset = uint64(call.Send - uintptr(call.send.bases[ownRank]))
	}
	s.stageParts(call)
}

// stagedPerPart returns how many elements of each part a rank stages in the current step.
func (s *splitExchange) stagedPerPart(ranks, rank int, size int64) int64 {
	parts := int64(0)
	for _, unstaged := range s.unstagedCounts[rank*ranks : (rank+1)*ranks] {
		if unstaged > 0 {
			parts++
		}
	}
	unit := 64 / size
	return (stageBytes - s.partsOffset) / size / max(1, parts) / unit * unit
}

func (s *splitExchange) stageParts(call *plan) {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	stagedPerPart := s.stagedPerPart(ranks, ownRank, call.elementSize)
	dst := unsafe.Add(m.stage(ownRank, m.group.Step()+1), s.partsOffset)
	for r := range ranks {
		unstaged := s.unstagedCounts[ownRank*ranks+r]
		if unstaged == 0 {
			continue
		}
		first := call.Splits.SendOffsets[r] + call.Splits.SendCounts[r] - unstaged
		reduce.Copy(dst, unsafe.Add(s.source, first*call.elementSize),
			int(min(unstaged, stagedPerPart)*call.elementSize), reduce.Hint{})
		dst = unsafe.Add(dst, stagedPerPart*call.elementSize)
	}
	m.group.Post(call.Digest, nil, 0)
}

func (s *splitExchange) completeExchange(call *plan, ticket uint64) error {
	m := s.mover
	if err := s.compareCounts(call, ticket); err != nil {
		return err
	}
	first := m.group.Step()
	// An empty part may have any offset.
	if own := call.Splits.SendCounts[m.rank] * call.elementSize; own > 0 {
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[m.rank]*call.elementSize),
			unsafe.Add(s.source, call.Splits.SendOffsets[m.rank]*call.elementSize), int(own),
			reduce.Hint{Stream: own >= streamBytes})
	}
	usedWindows, err := s.copyFromWindows(call, first)
	if err != nil {
		return err
	}
	for s.copyStaged(call) {
		s.stageParts(call)
		if err := m.waitForStep(&call.Call, ticket); err != nil {
			return err
		}
		if err := m.group.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if !usedWindows {
		return nil
	}
	m.group.Post(call.Digest, nil, 0)
	return m.waitForStep(&call.Call, ticket)
}

// compareCounts stores the send counts in s.unstagedCounts. If the group compares calls, it checks
// the counts of all ranks, so that all ranks get the same error.
func (s *splitExchange) compareCounts(call *plan, ticket uint64) error {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	mismatch := &driver.MessageError{Fault: driver.SplitsDiffer, Group: m.cfg.Name(), Number: ticket}
	for src := range ranks {
		table := s.table(src, m.group.Step())
		for dst := range ranks {
			sendCount := spin.LoadAcquire64(&table.rows[dst].send)
			recvCount := spin.LoadAcquire64(&s.table(dst, m.group.Step()).rows[src].recv)
			if src == ownRank {
				sendCount = uint64(call.Splits.SendCounts[dst])
			}
			if dst == ownRank {
				recvCount = uint64(call.Splits.RecvCounts[src])
			}
			isCompared := m.group.IsComparing() || src == ownRank || dst == ownRank
			if sendCount > maxSplitCount || isCompared && sendCount != recvCount {
				mismatch.Ends = append(mismatch.Ends, driver.MessageEnds{
					From: m.cfg.Ranks[src], To: m.cfg.Ranks[dst], Sent: sendCount,
					Received: recvCount,
				})
			}
			if src != dst && spin.LoadAcquire64(&table.isInWindow) == 0 {
				s.unstagedCounts[src*ranks+dst] = int64(sendCount)
			}
		}
	}
	if len(mismatch.Ends) > 0 {
		return mismatch
	}
	return nil
}

// maxSplitCount is the largest count that Splits.Validate accepts.
const maxSplitCount = 1 << 48

func (s *splitExchange) copyFromWindows(call *plan, step uint64) (usedWindows bool, err error) {
	m := s.mover
	for i := range len(m.stages) {
		r := (m.rank + i) % len(m.stages)
		t := s.table(r, step)
		if spin.LoadAcquire64(&t.isInWindow) == 0 {
			continue
		}
		usedWindows = true
		bytes := call.Splits.RecvCounts[r] * call.elementSize
		if r == m.rank || bytes == 0 {
			continue
		}
		src, err := s.partInWindow(r, t, uint64(bytes), uint64(call.elementSize))
		if err != nil {
			return true, err
		}
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[r]*call.elementSize), src,
			int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}
	return usedWindows, nil
}

func (s *splitExchange) partInWindow(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	m := s.mover
	offset, first := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[m.rank].sendOffset)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := s.registry.findWindow(key)
	if w == nil || first > maxSplitCount || offset > uint64(w.bytes) ||
		first*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-first*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
			"registered on this rank: %w", m.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+first*size), nil
}

// copyStaged copies this rank's parts of the staged data.
func (s *splitExchange) copyStaged(call *plan) (hasMore bool) {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	for src := range ranks {
		stagedPerPart := s.stagedPerPart(ranks, src, call.elementSize)
		part := unsafe.Add(m.stage(src, m.group.Step()), s.partsOffset)
		for dst := range ranks {
			unstaged := &s.unstagedCounts[src*ranks+dst]
			if *unstaged == 0 {
				continue
			}
			count := min(*unstaged, stagedPerPart)
			if dst == ownRank {
				copiedCount := call.Splits.RecvCounts[src] - *unstaged
				offset := (call.Splits.RecvOffsets[src] + copiedCount) * call.elementSize
				reduce.Copy(unsafe.Add(pointer(call.Recv), offset), part,
					int(count*call.elementSize), reduce.Hint{})
			}
			part = unsafe.Add(part, stagedPerPart*call.elementSize)
			*unstaged -= count
			hasMore = hasMore || *unstaged > 0
		}
	}
	return hasMore
}
