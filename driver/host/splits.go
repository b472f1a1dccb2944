package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// In an AllToAllV, every rank sends a part of its send buffer to every rank. The parts may differ
// in size. A call's splits are the counts and offsets of the parts, in elements.
//
// The data moves in steps. In each step, every rank copies data to a buffer in shared memory (its
// staging buffer), and the others read their share. In the first step, every rank also publishes
// its splits there. From the splits, every rank computes where the data of each step is.
//
// If a send buffer is in a window (memory that all ranks have mapped), it is not staged. Its rank
// publishes the buffer's position instead, and the others read the window.

// splitTable is at the start of a rank's staging buffer in the first step.
type splitTable struct {
	isInWindow uint64 // 1 if the send buffer is in a window, and 0 otherwise
	// The next three fields are valid only if isInWindow is 1.
	pool    uint64             // the window's SegmentKey.Pool
	segment uint64             // the window's SegmentKey.Ordinal
	offset  uint64             // position of the send buffer in the window in bytes
	rows    [maxRanks]splitRow // by group rank of the peer; only rows of the group's ranks are used
}

// splitRow holds the splits of a rank for one peer, in elements.
type splitRow struct {
	send       uint64 // length of the part that the rank sends to the peer
	recv       uint64 // length of the part that the rank expects from the peer
	sendOffset uint64 // position of the sent part in the send buffer
}

// splitExchange runs the AllToAllVs of a communicator.
type splitExchange struct {
	mover          *mover
	registry       *registry
	source         unsafe.Pointer // the send buffer, or a copy of it in an in-place call
	unstagedCounts []int64        // elements still to be staged, at [sender*ranks+receiver]
	partsOffset    int64          // offset of the first part in a staging buffer in bytes
}

// tableBytes returns the size of the used part of a splitTable, rounded up to whole lines.
func tableBytes(ranks int) int64 {
	headerBytes := int64(unsafe.Offsetof(splitTable{}.rows))
	rowBytes := int64(unsafe.Sizeof(splitRow{}))
	bytes := headerBytes + int64(ranks)*rowBytes
	return (bytes + lineStride - 1) / lineStride * lineStride
}

func (s *splitExchange) table(rank int, step uint64) *splitTable {
	return (*splitTable)(s.mover.stage(rank, step))
}

// postSplits writes this rank's table, stages the first data, and posts the first step.
func (s *splitExchange) postSplits(call *plan) {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	if s.unstagedCounts == nil {
		s.unstagedCounts = make([]int64, ranks*ranks)
		s.partsOffset = tableBytes(ranks)
	}

	clear(s.unstagedCounts)
	s.source = pointer(call.Send)
	isInPlace := call.Send == call.Recv
	if isInPlace && call.bytes > 0 {
		copied := make([]byte, call.bytes)
		s.source = unsafe.Pointer(&copied[0])
		reduce.Copy(s.source, pointer(call.Send), len(copied), reduce.Hint{})
	}

	t := s.table(ownRank, m.group.Step()+1)
	t.isInWindow = 0 // the buffer still holds data of an earlier step
	for r := range ranks {
		t.rows[r] = splitRow{
			send:       uint64(call.Splits.SendCounts[r]),
			recv:       uint64(call.Splits.RecvCounts[r]),
			sendOffset: uint64(call.Splits.SendOffsets[r]),
		}
		if r != ownRank && call.send == nil {
			s.unstagedCounts[ownRank*ranks+r] = call.Splits.SendCounts[r]
		}
	}

	if call.send != nil {
		key := call.send.key
		t.isInWindow = 1
		t.pool = key.Pool
		t.segment = uint64(key.Ordinal)
		t.offset = uint64(call.Send - uintptr(call.send.bases[ownRank]))
	}

	s.stageParts(call)
}

// stagedPerPart returns the maximum number of elements of each part that a rank stages in the
// current step. All parts that are not yet complete get an equal share of the staging buffer.
func (s *splitExchange) stagedPerPart(ranks, rank int, elementSize int64) int64 {
	parts := int64(0)
	for _, unstaged := range s.unstagedCounts[rank*ranks : (rank+1)*ranks] {
		if unstaged > 0 {
			parts++
		}
	}

	shareBytes := (stageBytes - s.partsOffset) / max(1, parts)
	// Round down, so that every share starts at a cache line.
	const cacheLine = 64
	unit := cacheLine / elementSize
	return shareBytes / elementSize / unit * unit
}

// stageParts copies this rank's next data to its staging buffer, and posts the next step.
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

		stagedCount := call.Splits.SendCounts[r] - unstaged
		first := call.Splits.SendOffsets[r] + stagedCount
		src := unsafe.Add(s.source, first*call.elementSize)
		bytes := min(unstaged, stagedPerPart) * call.elementSize
		reduce.Copy(dst, src, int(bytes), reduce.Hint{})
		dst = unsafe.Add(dst, stagedPerPart*call.elementSize)
	}

	m.group.Post(call.Digest, nil, 0) // without a payload
}

// completeExchange runs an AllToAllV to its end. Call it when all ranks have posted the first step.
// ticket is the number of the collective in the group.
func (s *splitExchange) completeExchange(call *plan, ticket uint64) error {
	m := s.mover
	if err := s.compareCounts(call, ticket); err != nil {
		return err
	}

	tableStep := m.group.Step()
	s.copyOwnPart(call)
	usedWindows, err := s.copyFromWindows(call, tableStep)
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

	// After another step, no rank reads a window any more, and callers may change their buffers.
	m.group.Post(call.Digest, nil, 0)
	return m.waitForStep(&call.Call, ticket)
}

// copyOwnPart copies the part that this rank sends to its own receive buffer.
func (s *splitExchange) copyOwnPart(call *plan) {
	own := s.mover.rank
	bytes := call.Splits.SendCounts[own] * call.elementSize
	if bytes == 0 {
		return // the offsets of an empty part may be out of range
	}

	dst := unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[own]*call.elementSize)
	src := unsafe.Add(s.source, call.Splits.SendOffsets[own]*call.elementSize)
	reduce.Copy(dst, src, int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
}

// compareCounts sets s.unstagedCounts from the tables of all ranks. It returns an error if a count
// of a sender differs from that of the receiver. If the group compares calls, it compares the
// counts of all pairs, so that all ranks get the same error. Otherwise, it compares only the pairs
// of this rank.
func (s *splitExchange) compareCounts(call *plan, ticket uint64) error {
	m := s.mover
	ranks, ownRank := len(m.stages), m.rank
	mismatch := &driver.MessageError{Fault: driver.SplitsDiffer, Group: m.cfg.Name(), Number: ticket}
	for src := range ranks {
		srcTable := s.table(src, m.group.Step())
		for dst := range ranks {
			dstTable := s.table(dst, m.group.Step())
			sendCount := spin.LoadAcquire64(&srcTable.rows[dst].send)
			recvCount := spin.LoadAcquire64(&dstTable.rows[src].recv)
			// Peers could have overwritten this rank's table, so use the call.
			if src == ownRank {
				sendCount = uint64(call.Splits.SendCounts[dst])
			}

			if dst == ownRank {
				recvCount = uint64(call.Splits.RecvCounts[src])
			}

			isCompared := m.group.IsComparing() || src == ownRank || dst == ownRank
			differs := isCompared && sendCount != recvCount
			if sendCount > maxSplitCount || differs {
				mismatch.Ends = append(mismatch.Ends, driver.MessageEnds{
					From: m.cfg.Ranks[src], To: m.cfg.Ranks[dst],
					Sent: sendCount, Received: recvCount,
				})
			}

			isStaged := src != dst && spin.LoadAcquire64(&srcTable.isInWindow) == 0
			if isStaged { // otherwise, the count stays 0
				s.unstagedCounts[src*ranks+dst] = int64(sendCount)
			}
		}
	}

	if len(mismatch.Ends) > 0 {
		return mismatch
	}

	return nil
}

// maxSplitCount is the largest count that Splits.Validate accepts. Counts in a table can be larger,
// because a faulty peer may write any value.
const maxSplitCount = 1 << 48

// copyFromWindows copies the parts of peers whose send buffers are in windows. tableStep is the
// step of the tables. usedWindows is set if any rank's send buffer is in a window, even if this
// rank reads nothing from it.
func (s *splitExchange) copyFromWindows(
	call *plan, tableStep uint64,
) (usedWindows bool, err error) {
	m := s.mover
	for i := range len(m.stages) {
		r := (m.rank + i) % len(m.stages) // ranks start at different peers
		t := s.table(r, tableStep)
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
			return usedWindows, err
		}

		dst := unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[r]*call.elementSize)
		reduce.Copy(dst, src, int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}

	return usedWindows, nil
}

// partInWindow returns the address of the part that a peer sends to this rank from a window. t is
// the peer's table. Its values are not trusted, and the whole part must lie in the window.
func (s *splitExchange) partInWindow(
	peer int, t *splitTable, bytes, elementSize uint64,
) (unsafe.Pointer, error) {
	m := s.mover
	offset := spin.LoadAcquire64(&t.offset)
	first := spin.LoadAcquire64(&t.rows[m.rank].sendOffset)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := s.registry.findWindow(key)
	if w != nil && first <= maxSplitCount && offset <= uint64(w.bytes) {
		start := offset + first*elementSize // less than 1<<63 + 1<<52, so it does not overflow
		if w.contains(start, bytes) {
			return unsafe.Add(w.bases[peer], start), nil
		}
	}

	return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
		"registered on this rank: %w", m.cfg.Ranks[peer], key.Ordinal, driver.ErrOutOfRange)
}

// copyStaged copies the data that the current step has staged for this rank. It subtracts the
// staged data of all ranks from s.unstagedCounts. hasMore is set if any rank must stage more.
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
				recvOffset := (call.Splits.RecvOffsets[src] + copiedCount) * call.elementSize
				recv := unsafe.Add(pointer(call.Recv), recvOffset)
				reduce.Copy(recv, part, int(count*call.elementSize), reduce.Hint{})
			}

			part = unsafe.Add(part, stagedPerPart*call.elementSize)
			*unstaged -= count
			if *unstaged > 0 {
				hasMore = true
			}
		}
	}

	return hasMore
}
