package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV proceeds in steps, like other staged collectives. In the first step every rank also
// publishes its splits. All ranks compare the splits and compute from them which data each rank
// stages in each step. A rank whose send buffer is in a window publishes the buffer's position
// instead of staging data; the other ranks read their parts from the window.

// splitTable holds the splits that a rank publishes at the start of its staging buffer.
type splitTable struct {
	// direct is 1 if the other ranks read the send buffer from a window. pool, segment and offset
	// then give the buffer's position.
	direct        uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow describes a rank's parts for one peer. send and recv are the numbers of elements that
// the rank sends and expects. at is the sent part's offset in the rank's send buffer.
type splitRow struct{ send, recv, at uint64 }

// splitExchange runs an AllToAllV.
type splitExchange struct {
	mover    *mover
	registry *registry
	// source is the send buffer, or a copy of it if the call is in place.
	source unsafe.Pointer
	// left counts the elements still to be staged, by sender and receiver.
	left []int64
	// data is the offset at which the parts begin in a staging buffer.
	data int64
}

func tableBytes(ranks int) int64 {
	const line = lineStride
	bytes := int64(unsafe.Offsetof(splitTable{}.rows)) +
		int64(ranks)*int64(unsafe.Sizeof(splitRow{}))
	return (bytes + line - 1) / line * line
}

func (d *splitExchange) table(rank int, step uint64) *splitTable {
	return (*splitTable)(d.mover.stage(rank, step))
}

func (d *splitExchange) begin(call *plan) {
	m := d.mover
	n, me := len(m.stages), m.rank
	if d.left == nil {
		d.left, d.data = make([]int64, n*n), tableBytes(n)
	}
	clear(d.left)
	d.source = pointer(call.Send)
	if call.Send == call.Recv && call.bytes > 0 {
		copied := make([]byte, call.bytes)
		d.source = unsafe.Pointer(&copied[0])
		reduce.Copy(d.source, pointer(call.Send), len(copied), reduce.Hint{})
	}
	t := d.table(me, m.group.Step()+1)
	t.direct = 0
	for r := range n {
		t.rows[r] = splitRow{
			send: uint64(call.Splits.SendCounts[r]), recv: uint64(call.Splits.RecvCounts[r]),
			at: uint64(call.Splits.SendOffsets[r]),
		}
		if r != me && call.send == nil {
			d.left[me*n+r] = call.Splits.SendCounts[r]
		}
	}
	if call.send != nil {
		key := call.send.key
		t.direct, t.pool = 1, key.Pool
		t.segment = uint64(key.Ordinal)
		t.offset = uint64(call.Send - uintptr(call.send.bases[me]))
	}
	d.contribute(call)
}

// share returns the number of elements of each part that a rank stages in the current step.
func (d *splitExchange) share(n, rank int, size int64) int64 {
	parts := int64(0)
	for _, left := range d.left[rank*n : (rank+1)*n] {
		if left > 0 {
			parts++
		}
	}
	unit := 64 / size
	return (stageBytes - d.data) / size / max(1, parts) / unit * unit
}

func (d *splitExchange) contribute(call *plan) {
	m := d.mover
	n, me := len(m.stages), m.rank
	share := d.share(n, me, call.size)
	to := unsafe.Add(m.stage(me, m.group.Step()+1), d.data)
	for r := range n {
		left := d.left[me*n+r]
		if left == 0 {
			continue
		}
		from := call.Splits.SendOffsets[r] + call.Splits.SendCounts[r] - left
		reduce.Copy(to, unsafe.Add(d.source, from*call.size), int(min(left, share)*call.size),
			reduce.Hint{})
		to = unsafe.Add(to, share*call.size)
	}
	m.group.Post(call.Digest, nil, 0)
}

func (d *splitExchange) finish(call *plan, ticket uint64) error {
	m := d.mover
	if err := d.compare(call, ticket); err != nil {
		return err
	}
	first := m.group.Step()
	// An empty part may have any offset.
	if own := call.Splits.SendCounts[m.rank] * call.size; own > 0 {
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[m.rank]*call.size),
			unsafe.Add(d.source, call.Splits.SendOffsets[m.rank]*call.size), int(own),
			reduce.Hint{Stream: own >= streamBytes})
	}
	pulled, err := d.readDirect(call, first)
	if err != nil {
		return err
	}
	for d.unstage(call) {
		d.contribute(call)
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

// compare compares the counts that ranks send with the counts that their peers expect, and stores
// the counts in d.left. If the group compares calls, it compares all counts, and all ranks get the
// same error. Otherwise it compares only this rank's counts.
func (d *splitExchange) compare(call *plan, ticket uint64) error {
	m := d.mover
	n, me := len(m.stages), m.rank
	e := &driver.MessageError{Fault: driver.SplitsDiffer, Group: m.cfg.Name(), Number: ticket}
	for from := range n {
		theirs := d.table(from, m.group.Step())
		for to := range n {
			sent := spin.LoadAcquire64(&theirs.rows[to].send)
			expected := spin.LoadAcquire64(&d.table(to, m.group.Step()).rows[from].recv)
			if from == me {
				sent = uint64(call.Splits.SendCounts[to])
			}
			if to == me {
				expected = uint64(call.Splits.RecvCounts[from])
			}
			concerns := m.group.Comparing() || from == me || to == me
			if sent > maxSplit || concerns && sent != expected {
				e.Ends = append(e.Ends, driver.MessageEnds{
					From: m.cfg.Ranks[from], To: m.cfg.Ranks[to], Sent: sent, Received: expected,
				})
			}
			if from != to && spin.LoadAcquire64(&theirs.direct) == 0 {
				d.left[from*n+to] = int64(sent)
			}
		}
	}
	if len(e.Ends) > 0 {
		return e
	}
	return nil
}

// maxSplit is the largest count of a part that Splits.Validate accepts.
const maxSplit = 1 << 48

// readDirect copies this rank's parts from send buffers in windows. It reports whether there are
// any such buffers.
func (d *splitExchange) readDirect(call *plan, step uint64) (pulled bool, err error) {
	m := d.mover
	for i := range len(m.stages) {
		r := (m.rank + i) % len(m.stages)
		t := d.table(r, step)
		if spin.LoadAcquire64(&t.direct) == 0 {
			continue
		}
		pulled = true
		bytes := call.Splits.RecvCounts[r] * call.size
		if r == m.rank || bytes == 0 {
			continue
		}
		from, err := d.windowOf(r, t, uint64(bytes), uint64(call.size))
		if err != nil {
			return true, err
		}
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[r]*call.size), from,
			int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}
	return pulled, nil
}

func (d *splitExchange) windowOf(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	m := d.mover
	offset, at := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[m.rank].at)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := d.registry.find(key)
	if w == nil || at > maxSplit || offset > uint64(w.bytes) ||
		at*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-at*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
			"registered on this rank: %w", m.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+at*size), nil
}

// unstage copies this rank's parts of the current step. It reports whether any rank has more data.
func (d *splitExchange) unstage(call *plan) (more bool) {
	m := d.mover
	n, me := len(m.stages), m.rank
	for from := range n {
		share := d.share(n, from, call.size)
		at := unsafe.Add(m.stage(from, m.group.Step()), d.data)
		for to := range n {
			left := &d.left[from*n+to]
			if *left == 0 {
				continue
			}
			count := min(*left, share)
			if to == me {
				done := call.Splits.RecvCounts[from] - *left
				reduce.Copy(
					unsafe.Add(pointer(call.Recv), (call.Splits.RecvOffsets[from]+done)*call.size), at,
					int(count*call.size), reduce.Hint{})
			}
			at = unsafe.Add(at, share*call.size)
			*left -= count
			more = more || *left > 0
		}
	}
	return more
}
