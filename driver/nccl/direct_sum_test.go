package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// repeatedSum is a rank's buffer for a series of identical in-place calls. Each call changes all
// elements from one common value to the next, which reveals missing and repeated calls. With 3
// ranks and unit 1:
//
//	all-reduce                 1, 3, 9, 27, ... (with 2 ranks, stuck at 0 after 32 calls)
//	reduce-scatter (additive)  1, 3, 5, 7, ...
type repeatedSum struct {
	*region
	count      int64 // elements that a call changes
	offset     int64 // of these elements, in bytes
	isAdditive bool
	unit       uint32 // initial value
	want       uint32 // expected value after the calls so far
}

// smallCount is for tests in which the number of elements does not matter.
const smallCount = 1000

// windowName identifies a rank's window in tests that need only one.
const windowName = 1

// newRepeatedSum allocates a buffer and registers it with the group under the given name, which
// also determines the unit: 1 for name 1. All ranks must call it.
func (m *testRank) newRepeatedSum(w *testGroup, name uint32, count int64) (*repeatedSum, error) {
	unit := 1 + 1000*(name-1) // different units reveal a call on the wrong buffer
	cfg := &m.group.(*communicator).cfg
	partBytes := 4 * count
	bytes, offset := partBytes, int64(0)
	if w.hasAdditiveSums { // the buffer has a part for each rank
		bytes = partBytes * int64(len(cfg.Ranks))
		offset = partBytes * int64(cfg.Rank)
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

// setToUnit writes p.unit to all elements of a buffer of the given size.
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

func (p *repeatedSum) call(path driver.Path) driver.Call {
	const digest = 3 // the same on all ranks
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

// launch launches the next call and updates p.want.
func (p *repeatedSum) launch(c driver.Communicator, s driver.Stream, path driver.Path) error {
	call := p.call(path)
	group := c.(*communicator)
	if path == driver.PathDirect {
		work, refusal := group.Offer(call).(*plan).choose()
		if refusal == nil { // prepare below returns a refusal
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

// checkKind checks that large calls, and no others, use a bulk kernel.
func (p *repeatedSum) checkKind(launch *kernels.Launch) error {
	wantBulk := p.count >= countFor["bulk"]
	if launch.Bulk != wantBulk {
		return fmt.Errorf("the call of %d elements uses %s, with Bulk = %t, want %t", p.count,
			launch.Kernel, launch.Bulk, wantBulk)
	}

	return nil
}

// countCalls updates p.want.
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

// replay launches a graph that contains the given number of calls, and updates p.want.
func (p *repeatedSum) replay(m *testRank, g driver.Graph, s driver.Stream, calls int) error {
	p.countCalls(m.group.(*communicator), calls)
	return g.Launch(s)
}

// check waits for the streams and compares the elements with p.want.
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
