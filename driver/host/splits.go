package host

import (
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// An AllToAllV proceeds in steps, like other collectives through staging. In the first one every
// rank also publishes how it divides its buffers, so that all ranks know all splits: they compare
// them, and compute identically which data each rank puts into its staging in each step, and where.
// A rank whose send buffer lies in a window publishes that instead, and the others read their parts
// there.

// splitTable is the table that a rank publishes at the start of its staging buffer.
type splitTable struct {
	// direct is 1 if the others read the send buffer where it lies: in the window of the segment, at
	// the offset.
	direct        uint64
	pool, segment uint64
	offset        uint64
	rows          [maxRanks]splitRow // by group rank
}

// splitRow holds the elements that a rank sends to another and expects from it, and the offset of
// the sent part in its send buffer.
type splitRow struct{ send, recv, at uint64 }

// splitExchange is the AllToAllV that runs.
type splitExchange struct {
	c *communicator
	// source is the send buffer, or a copy of it where the call works in place.
	source unsafe.Pointer
	// left are the elements that have to go through staging yet, by sender and then by receiver.
	left []int64
	// data is where the parts begin in a staging buffer.
	data int64
}

// tableBytes returns the size of the tables of a group in staging.
func tableBytes(ranks int) int64 {
	const line = lineStride
	bytes := int64(unsafe.Offsetof(splitTable{}.rows)) +
		int64(ranks)*int64(unsafe.Sizeof(splitRow{}))
	return (bytes + line - 1) / line * line
}

// table returns the table that a rank has published in the current step.
func (d *splitExchange) table(rank int, step uint64) *splitTable {
	return (*splitTable)(d.c.stage(rank, step))
}

// begin posts the first step of an AllToAllV.
func (d *splitExchange) begin(call *plan) {
	c := d.c
	n, me := c.Size(), c.cfg.Rank
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
	t := d.table(me, c.Step()+1)
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

// share returns how many elements of each part a rank puts into its staging in the current step.
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

// contribute puts this rank's parts of the next step into staging and posts it.
func (d *splitExchange) contribute(call *plan) {
	c := d.c
	n, me := c.Size(), c.cfg.Rank
	share := d.share(n, me, call.size)
	to := unsafe.Add(c.stage(me, c.Step()+1), d.data)
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
	c.Post(call.Digest, nil, 0)
}

// finish completes an AllToAllV after everybody's first step has arrived.
func (d *splitExchange) finish(call *plan, ticket uint64) error {
	c := d.c
	if err := d.compare(call, ticket); err != nil {
		return err
	}
	first := c.Step()
	// Where a part is empty its offset may lie anywhere.
	if own := call.Splits.SendCounts[c.cfg.Rank] * call.size; own > 0 {
		reduce.Copy(unsafe.Add(pointer(call.Recv), call.Splits.RecvOffsets[c.cfg.Rank]*call.size),
			unsafe.Add(d.source, call.Splits.SendOffsets[c.cfg.Rank]*call.size), int(own),
			reduce.Hint{Stream: own >= streamBytes})
	}
	pulled, err := d.readDirect(call, first)
	if err != nil {
		return err
	}
	for d.take(call) {
		d.contribute(call)
		if err := c.arrive(&call.Call, ticket); err != nil {
			return err
		}
		if err := c.CompareStep(&call.Call, ticket); err != nil {
			return err
		}
	}
	if !pulled {
		return nil
	}
	c.Post(call.Digest, nil, 0)
	return c.arrive(&call.Call, ticket)
}

// compare notes what all ranks send, and compares it with what their peers expect: all of it
// where calls are compared, so that all ranks get the same error, else what concerns this rank.
func (d *splitExchange) compare(call *plan, ticket uint64) error {
	c := d.c
	n, me := c.Size(), c.cfg.Rank
	e := &driver.MessageError{Fault: driver.SplitsDiffer, Group: c.cfg.Name(), Number: ticket}
	for from := range n {
		theirs := d.table(from, c.Step())
		for to := range n {
			sent := spin.LoadAcquire64(&theirs.rows[to].send)
			expected := spin.LoadAcquire64(&d.table(to, c.Step()).rows[from].recv)
			if from == me {
				sent = uint64(call.Splits.SendCounts[to])
			}
			if to == me {
				expected = uint64(call.Splits.RecvCounts[from])
			}
			concerns := c.Comparing() || from == me || to == me
			if sent > maxSplit || concerns && sent != expected {
				e.Ends = append(e.Ends, driver.MessageEnds{
					From: c.cfg.Ranks[from], To: c.cfg.Ranks[to], Sent: sent, Received: expected,
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

// maxSplit is the largest count of a part, as Splits.Validate has it.
const maxSplit = 1 << 48

// readDirect copies this rank's parts out of the windows of those whose send buffers lie in some,
// and reports whether there are any.
func (d *splitExchange) readDirect(call *plan, step uint64) (pulled bool, err error) {
	c := d.c
	for i := range c.Size() {
		r := (c.cfg.Rank + i) % c.Size()
		t := d.table(r, step)
		if spin.LoadAcquire64(&t.direct) == 0 {
			continue
		}
		pulled = true
		bytes := call.Splits.RecvCounts[r] * call.size
		if r == c.cfg.Rank || bytes == 0 {
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

// windowOf finds this rank's part in the window that a peer names.
func (d *splitExchange) windowOf(
	rank int, t *splitTable, bytes, size uint64,
) (unsafe.Pointer, error) {
	c := d.c
	offset, at := spin.LoadAcquire64(&t.offset), spin.LoadAcquire64(&t.rows[c.cfg.Rank].at)
	key := driver.SegmentKey{
		Pool: spin.LoadAcquire64(&t.pool), Ordinal: uint32(spin.LoadAcquire64(&t.segment)),
	}
	c.Mu.Lock()
	w := c.windows[key]
	c.Mu.Unlock()
	if w == nil || at > maxSplit || offset > uint64(w.bytes) ||
		at*size > uint64(w.bytes)-offset || bytes > uint64(w.bytes)-offset-at*size {
		return nil, fmt.Errorf("rank %d of the world sends from segment %d, which is no window here or "+
			"too short: %w", c.cfg.Ranks[rank], key.Ordinal, driver.ErrOutOfRange)
	}
	return unsafe.Add(w.bases[rank], offset+at*size), nil
}

// take takes this rank's parts of the current step, and reports whether anything is left.
func (d *splitExchange) take(call *plan) (more bool) {
	c := d.c
	n, me := c.Size(), c.cfg.Rank
	for from := range n {
		share := d.share(n, from, call.size)
		at := unsafe.Add(c.stage(from, c.Step()), d.data)
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
