package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV is staged in steps. In the first step, every rank also publishes its splits, from
// which all ranks compute what each rank stages in each step. A rank whose send buffer is in a
// window, a segment mapped into all ranks, publishes the buffer's position instead of staging data.

// splitTable is at the start of a rank's staging buffer.
type splitTable struct {
	// direct is 1 if the other ranks read the send buffer from a window. Then pool and segment
	// identify the window, and offset is the buffer's offset in it.
	direct        uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow counts the elements that a rank sends to one peer and expects from it. sendOffset, in
// elements, is the position of the sent part in the send buffer.
type splitRow struct{ send, recv, sendOffset uint64 }

// splitExchange runs an AllToAllV.
type splitExchange struct {
	mover       *mover
	registry    *registry
	source      unsafe.Pointer // the send buffer, or a copy if the call is in place
	unstaged    []int64        // in elements, by sender and receiver
	partsOffset int64          // in a staging buffer
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

func (s *splitExchange) begin(call *plan) {
	m := s.mover
	ranks, me := len(m.stages), m.rank
	if s.unstaged == nil {
		s.unstaged, s.partsOffset = make([]int64, ranks*ranks), tableBytes(ranks)
	}
	clear(s.unstaged)
	s.source = pointer(call.Send)
	if call.Send == call.Recv && call.bytes > 0 {
		copied := make([]byte, call.bytes)
		s.source = unsafe.Pointer(&copied[0])
		reduce.Copy(s.source, pointer(call.Send), len(copied), reduce.Hint{})
	}
	t := s.table(me, m.group.Step()+1)
	t.direct = 0
	for r := range ranks {
		t.rows[r] = splitRow{
			send: uint64(call.Splits.SendCounts[r]), recv: uint64(call.Splits.RecvCounts[r]),
			sendOffset: uint64(call.Splits.SendOffsets[r]),
		}
		if r != me && call.send == nil {
			s.unstaged[me*ranks+r] = call.Splits.SendCounts[r]
		}
	}
	if call.send != nil {
		key := call.send.key
		t.direct, t.pool = 1, key.Pool
		t.segment = uint64(key.Ordinal)
		t.offset = uint64(call.Send - uintptr(call.send.bases[me]))
	}
	s.contribute(call)
}

// share returns how many elements of each part a rank stages in the current step.
func (s *splitExchange) share(ranks, rank int, size int64) int64 {
	parts := int64(0)
	for _, left := range s.unstaged[rank*ranks : (rank+1)*ranks] {
		if left > 0 {
			parts++
		}
	}
	unit := 64 / size
	return (stageBytes - s.partsOffset) / size / max(1, parts) / unit * unit
}

func (s *splitExchange) contribute(call *plan) {
	m := s.mover
	ranks, me := len(m.stages), m.rank
	share := s.share(ranks, me, call.elementSize)
	dst := unsafe.Add(m.stage(me, m.group.Step()+1), s.partsOffset)
	for r := range ranks {
		left := s.unstaged[me*ranks+r]
		if left == 0 {
			continue
		}
		first := call.Splits.SendOffsets[r] + call.Splits.SendCounts[r] - left
		reduce.Copy(dst, unsafe.Add(s.source, first*call.elementSize),
			int(min(left, share)*call.elementSize), reduce.Hint{})
		dst = unsafe.Add(dst, share*call.elementSize)
	}
	m.group.Post(call.Digest, nil, 0)
}

func (s *splitExchange) finish(call *plan, ticket uint64) error {
	m := s.mover
	if err := s.compare(call, ticket); err != nil {
		return err
	}
	first := m.group.Step()
	// An empty part may have any offset.
	if own := call.Splits.SendCounts[m.rank] * call.elementSize; own > 0 {
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[m.rank]*call.elementSize),
			unsafe.Add(s.source, call.Splits.SendOffsets[m.rank]*call.elementSize), int(own),
			reduce.Hint{Stream: own >= streamBytes})
	}
	pulled, err := s.readDirect(call, first)
	if err != nil {
		return err
	}
	for s.unstage(call) {
		s.contribute(call)
		if err := m.arrive(&call.Call, ticket); err != nil {
			return err
		}
		if err := m.group.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if !pulled {
		return nil
	}
	m.group.Post(call.Digest, nil, 0)
	return m.arrive(&call.Call, ticket)
}

// compare compares the counts that ranks send with those that their peers expect, and stores them
// in s.unstaged. If the group compares calls, it checks the counts of all ranks, so that all ranks
// get the same error.
func (s *splitExchange) compare(call *plan, ticket uint64) error {
	m := s.mover
	ranks, me := len(m.stages), m.rank
	mismatch := &driver.MessageError{Fault: driver.SplitsDiffer, Group: m.cfg.Name(), Number: ticket}
	for src := range ranks {
		table := s.table(src, m.group.Step())
		for dst := range ranks {
			sent := spin.LoadAcquire64(&table.rows[dst].send)
			expected := spin.LoadAcquire64(&s.table(dst, m.group.Step()).rows[src].recv)
			if src == me {
				sent = uint64(call.Splits.SendCounts[dst])
			}
			if dst == me {
				expected = uint64(call.Splits.RecvCounts[src])
			}
			checked := m.group.Comparing() || src == me || dst == me
			if sent > maxSplit || checked && sent != expected {
				mismatch.Ends = append(mismatch.Ends, driver.MessageEnds{
					From: m.cfg.Ranks[src], To: m.cfg.Ranks[dst], Sent: sent, Received: expected,
				})
			}
			if src != dst && spin.LoadAcquire64(&table.direct) == 0 {
				s.unstaged[src*ranks+dst] = int64(sent)
			}
		}
	}
	if len(mismatch.Ends) > 0 {
		return mismatch
	}
	return nil
}

// maxSplit is the largest count that Splits.Validate accepts.
const maxSplit = 1 << 48

// readDirect copies this rank's parts from send buffers in windows, if there are any.
func (s *splitExchange) readDirect(call *plan, step uint64) (pulled bool, err error) {
	m := s.mover
	for i := range len(m.stages) {
		r := (m.rank + i) % len(m.stages)
		t := s.table(r, step)
		if spin.LoadAcquire64(&t.direct) == 0 {
			continue
		}
		pulled = true
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
	return pulled, nil
}

func (s *splitExchange) partInWindow(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	m := s.mover
	offset, first := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[m.rank].sendOffset)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := s.registry.find(key)
	if w == nil || first > maxSplit || offset > uint64(w.bytes) ||
		first*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-first*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
			"registered on this rank: %w", m.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+first*size), nil
}

// unstage copies this rank's parts of the staged data, and reports whether there is more to stage.
func (s *splitExchange) unstage(call *plan) (more bool) {
	m := s.mover
	ranks, me := len(m.stages), m.rank
	for src := range ranks {
		share := s.share(ranks, src, call.elementSize)
		part := unsafe.Add(m.stage(src, m.group.Step()), s.partsOffset)
		for dst := range ranks {
			left := &s.unstaged[src*ranks+dst]
			if *left == 0 {
				continue
			}
			count := min(*left, share)
			if dst == me {
				done := call.Splits.RecvCounts[src] - *left
				at := (call.Splits.RecvOffsets[src] + done) * call.elementSize
				reduce.Copy(unsafe.Add(pointer(call.Recv), at), part, int(count*call.elementSize),
					reduce.Hint{})
			}
			part = unsafe.Add(part, share*call.elementSize)
			*left -= count
			more = more || *left > 0
		}
	}
	return more
}
