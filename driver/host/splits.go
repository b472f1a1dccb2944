package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV proceeds in steps, like other staged collectives. In the first step, every rank
// also publishes its splits. All ranks compare the splits and compute from them what each rank
// stages in each step. A rank whose send buffer is in a window publishes the buffer's position
// instead of staging data, and the other ranks read their parts from the window.

// splitTable holds the splits that a rank publishes at the start of its staging buffer.
type splitTable struct {
	// direct is 1 if the other ranks read the send buffer from a window. The fields pool, segment
	// and offset then give the segment that contains the buffer and the buffer's offset in it.
	direct        uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow describes what a rank exchanges with one peer: how many elements it sends to the peer
// and expects from it, and the offset, in elements, at which the sent part begins in the send
// buffer.
type splitRow struct{ send, recv, sendOffset uint64 }

// splitExchange runs an AllToAllV.
type splitExchange struct {
	mover    *mover
	registry *registry
	source   unsafe.Pointer // the send buffer, or a copy of it if the call is in place
	left     []int64        // elements still to be staged, by sender and receiver
	data     int64          // offset at which the parts begin in a staging buffer
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
			sendOffset: uint64(call.Splits.SendOffsets[r]),
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

// share returns how many elements of each part a rank stages in the current step.
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
	dst := unsafe.Add(m.stage(me, m.group.Step()+1), d.data)
	for r := range n {
		left := d.left[me*n+r]
		if left == 0 {
			continue
		}
		first := call.Splits.SendOffsets[r] + call.Splits.SendCounts[r] - left
		reduce.Copy(dst, unsafe.Add(d.source, first*call.size), int(min(left, share)*call.size),
			reduce.Hint{})
		dst = unsafe.Add(dst, share*call.size)
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
// them in d.left. If the group compares calls, it checks the counts of all ranks, so that all ranks
// get the same error. If not, it checks only the counts that involve this rank.
func (d *splitExchange) compare(call *plan, ticket uint64) error {
	m := d.mover
	n, me := len(m.stages), m.rank
	e := &driver.MessageError{Fault: driver.SplitsDiffer, Group: m.cfg.Name(), Number: ticket}
	for src := range n {
		table := d.table(src, m.group.Step())
		for dst := range n {
			sent := spin.LoadAcquire64(&table.rows[dst].send)
			expected := spin.LoadAcquire64(&d.table(dst, m.group.Step()).rows[src].recv)
			if src == me {
				sent = uint64(call.Splits.SendCounts[dst])
			}
			if dst == me {
				expected = uint64(call.Splits.RecvCounts[src])
			}
			checked := m.group.Comparing() || src == me || dst == me
			if sent > maxSplit || checked && sent != expected {
				e.Ends = append(e.Ends, driver.MessageEnds{
					From: m.cfg.Ranks[src], To: m.cfg.Ranks[dst], Sent: sent, Received: expected,
				})
			}
			if src != dst && spin.LoadAcquire64(&table.direct) == 0 {
				d.left[src*n+dst] = int64(sent)
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

// readDirect copies this rank's parts from those send buffers that are in windows. It reports
// whether there are any such buffers.
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
		src, err := d.partInWindow(r, t, uint64(bytes), uint64(call.size))
		if err != nil {
			return true, err
		}
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[r]*call.size), src,
			int(bytes), reduce.Hint{Stream: bytes >= streamBytes})
	}
	return pulled, nil
}

// partInWindow returns the address of this rank's part in the send buffer that t describes.
func (d *splitExchange) partInWindow(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	m := d.mover
	offset, first := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[m.rank].sendOffset)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	w := d.registry.find(key)
	if w == nil || first > maxSplit || offset > uint64(w.bytes) ||
		first*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-first*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is too short or not "+
			"registered on this rank: %w", m.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+first*size), nil
}

// unstage copies this rank's parts from the data that was staged in the current step. It reports
// whether any rank has more data to stage.
func (d *splitExchange) unstage(call *plan) (more bool) {
	m := d.mover
	n, me := len(m.stages), m.rank
	for src := range n {
		share := d.share(n, src, call.size)
		part := unsafe.Add(m.stage(src, m.group.Step()), d.data)
		for dst := range n {
			left := &d.left[src*n+dst]
			if *left == 0 {
				continue
			}
			count := min(*left, share)
			if dst == me {
				done := call.Splits.RecvCounts[src] - *left
				reduce.Copy(
					unsafe.Add(pointer(call.Recv), (call.Splits.RecvOffsets[src]+done)*call.size), part,
					int(count*call.size), reduce.Hint{})
			}
			part = unsafe.Add(part, share*call.size)
			*left -= count
			more = more || *left > 0
		}
	}
	return more
}
