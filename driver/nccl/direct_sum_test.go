package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// A repeatedSum is a buffer for a series of identical calls, in place. Its elements are all the
// same integer, the unit at first. The integer shows whether a call was missing or repeated. With
// unit 1 and 3 ranks, it develops as follows:
//
//	                            start  call 1  call 2  call 3
//	all-reduce                  1      3       9       27
//	reduce-scatter (additive)   1      3       5       7
//
// An all-reduce multiplies the integer by the number of ranks. With 3 ranks, it stays odd even
// after an overflow. With 2 ranks, it is 0 after 32 calls, so that later calls would not change it.
//
// An additive sum has no such limit. Its buffer has a part for each rank. A call adds the other
// ranks' copies of this rank's part, which never change, to the part: the unit once for each other
// rank.

// repeatedSum is a rank's buffer for a series of identical calls.
type repeatedSum struct {
	*region
	count      int64 // elements in the buffer or, if isAdditive is set, in a part
	offset     int64 // byte offset of this rank's part, or 0 without parts
	isAdditive bool
	unit       uint32 // initial value of the integers
	want       uint32 // expected value after the calls up to now
}

// smallCount is the count of repeated sums in tests where it does not matter.
const smallCount = 1000

// windowName identifies a rank's window in tests that need only one.
const windowName = 1

// newRepeatedSum allocates a buffer, registers it with the rank's group and sets its elements to
// the unit. It must be called on all ranks. name identifies the window and determines the unit,
// which is 1 for name 1.
func (m *testRank) newRepeatedSum(w *testGroup, name uint32, count int64) (*repeatedSum, error) {
	unit := 1 + 1000*(name-1) // different units reveal a call on the wrong buffer
	cfg := &m.group.(*communicator).cfg
	bytes := 4 * count
	offset := int64(0)
	if w.hasAdditiveSums {
		offset = bytes * int64(cfg.Rank)
		bytes *= int64(len(cfg.Ranks))
	}

	s, err := m.mapRegion(bytes)
	if err != nil {
		return nil, err
	}

	p := &repeatedSum{
		region: s, count: count, offset: offset, isAdditive: w.hasAdditiveSums, unit: unit, want: unit,
	}
	err = m.register(w, s, name)
	return p, errors.Join(err, m.setToUnit(w, p, bytes))
}

// setToUnit sets all integers of the buffer, which has the given size, to p.unit.
func (m *testRank) setToUnit(w *testGroup, p *repeatedSum, bytes int64) error {
	for at := int64(0); at < bytes; at += pinnedBytes {
		piece := m.pinned[:min(pinnedBytes, bytes-at)]
		for i := 0; i < len(piece); i += 4 {
			binary.LittleEndian.PutUint32(piece[i:], p.unit)
		}

		to := p.segment.Address() + uintptr(at)
		from := dl.AddressOf(&piece[0])
		if err := m.stream.Copy(to, from, int64(len(piece))); err != nil {
			return err
		}

		if err := m.stream.Synchronize(w.t.Context()); err != nil {
			return err
		}
	}

	return nil
}

// call returns the call that is repeated.
func (p *repeatedSum) call(path driver.Path) driver.Call {
	const digest = 3 // any number, the same on all ranks
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int32, Count: p.count, Path: path, Digest: digest,
		Send: p.segment.Address(), Recv: p.segment.Address() + uintptr(p.offset),
		SendWindow: p.window, RecvWindow: p.window,
	}
	if p.isAdditive {
		call.Operation = driver.ReduceScatter
	}

	return call
}

// launch launches a call of a group on a stream, and updates p.want. On the direct path, it first
// checks that the kernel has the right kind (checkKind).
func (p *repeatedSum) launch(c driver.Communicator, s driver.Stream, path driver.Path) error {
	call := p.call(path)
	group := c.(*communicator)
	if path == driver.PathDirect {
		work, refusal := group.Offer(call).(*plan).choose()
		if refusal == nil { // otherwise prepare returns it
			if err := p.checkKind(work.(*kernels.Launch)); err != nil {
				return err
			}
		}
	}

	plan, err := prepare(c, call)
	if err != nil {
		return err
	}

	p.countCalls(group, 1)
	return c.Launch(s, plan)
}

// checkKind returns an error if a small call uses a bulk kernel, or a large call another kernel.
func (p *repeatedSum) checkKind(launch *kernels.Launch) error {
	wantBulk := p.count >= countFor["bulk"]
	if launch.Bulk != wantBulk {
		return fmt.Errorf("the call of %d elements uses %s, with Bulk = %t, want %t", p.count,
			launch.Kernel, launch.Bulk, wantBulk)
	}

	return nil
}

// countCalls updates p.want for the given number of calls of group c.
func (p *repeatedSum) countCalls(c *communicator, calls int) {
	ranks := uint32(len(c.cfg.Ranks))
	for range calls {
		if p.isAdditive {
			p.want += (ranks - 1) * p.unit
		} else {
			p.want *= ranks
		}
	}
}

// replay launches a graph that contains the given number of calls of the rank's group, and updates
// p.want.
func (p *repeatedSum) replay(m *testRank, g driver.Graph, s driver.Stream, calls int) error {
	p.countCalls(m.group.(*communicator), calls)
	return g.Launch(s)
}

// check waits for the streams and checks that all elements of the buffer, or of this rank's part,
// are p.want.
func (m *testRank) check(w *testGroup, p *repeatedSum, streams ...driver.Stream) error {
	for _, s := range streams {
		if err := s.Synchronize(w.t.Context()); err != nil {
			return err
		}
	}

	got, err := m.readDevice(w, p.segment.Address()+uintptr(p.offset), 4*p.count)
	if err != nil {
		return err
	}

	for i := range p.count {
		if v := binary.LittleEndian.Uint32(got[4*i:]); v != p.want {
			return fmt.Errorf("element %d is %d, want %d", i, v, p.want)
		}
	}

	return nil
}
