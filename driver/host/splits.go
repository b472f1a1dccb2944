package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV copies data in steps through the ranks' staging buffers. In the first step, every
// rank publishes its splits. From these, all ranks compute the data that each rank stages in each
// step. A rank whose send buffer is in a window stages no data, but publishes the buffer's
// position.

// splitTable holds the splits that a rank publishes at the start of its staging buffer.
type splitTable struct {
	// isInWindow is 1 if the other ranks read the send buffer in a window, and 0 otherwise. pool and
	// segment are the window's key, and offset is the position of the buffer in the window in bytes.
	isInWindow    uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow holds the numbers of elements that a rank sends to one peer and expects from it.
// sendOffset is the position, in elements, of the sent part in the send buffer.
type splitRow struct{ send, recv, sendOffset uint64 }

// splitExchange runs the AllToAllVs of a communicator.
type splitExchange struct {
	mover          *mover
	registry       *registry
	source         unsafe.Pointer // the send buffer, or a copy of it in an in-place call
	unstagedCounts []int64        // elements still to be staged, at [sender*ranks+receiver]
	partsOffset    int64          // offset of the first part in a staging buffer in bytes
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

// postSplits publishes this rank's splits and stages the first data.
func (s *splitExchange) postSplits(call *plan) {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	if s.unstagedCounts == nil {
		s.unstagedCounts = make([]int64, ranks*ranks)
		s.partsOffset = tableBytes(ranks)
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

// stagedPerPart returns the maximum number of elements of each part that a rank stages in the
// current step. size is the size of an element in bytes.
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

// stageParts copies this rank's next data to its staging buffer and begins the next step.
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

// compareCounts reads the splits of all ranks, and sets s.unstagedCounts. It returns an error if
// counts differ. If the group compares calls, it compares the counts of all ranks, so that all
// ranks get the same error. Otherwise, it compares only those of this rank.
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

// partInWindow returns the address of the part that a rank sends to this rank from a window.
func (s *splitExchange) partInWindow(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	m := s.mover
	offset, first := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[m.rank].sendOffset)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := s.registry.findWindow(key)
	// The order of the conditions prevents overflows.
	if w == nil || first > maxSplitCount || offset > uint64(w.bytes) ||
		first*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-first*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
			"registered on this rank: %w", m.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+first*size), nil
}

// copyStaged copies the data that is staged for this rank. hasMore reports whether any rank must
// stage more.
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
