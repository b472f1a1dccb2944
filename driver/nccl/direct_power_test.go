package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// power is a buffer of equal integers on a rank. Each call is an in-place all-reduce, which
// multiplies the integers by the number of ranks. So the integers are powers of that number. With
// three ranks, the integers stay odd even after they overflow, and every missing or repeated call
// is visible. With two ranks, they would soon be 0.
//
// If additive is set, each call is an in-place reduce-scatter, and the buffer has a part for each
// rank. A call adds the other ranks' copies of a part to the rank's own part. The other ranks'
// copies keep their initial value.
type power struct {
	*region
	count int64
	// own is the byte offset of this rank's part.
	own      int64
	additive bool
	// unit is the initial value of the integers.
	unit uint32
	// want is the expected value after all calls.
	want uint32
}

// newPower allocates a power and registers it with the group. All ranks must call it. The power
// with name 1 has unit 1.
func (m *testRank) newPower(w *testGroup, name uint32, count int64) (*power, error) {
	unit := 1 + 1000*(name-1)
	cfg, bytes, own := &m.group.(*communicator).cfg, 4*count, int64(0)
	if w.additive {
		bytes, own = bytes*int64(len(cfg.Ranks)), bytes*int64(cfg.Rank)
	}
	s, err := m.mapRegion(bytes)
	if err != nil {
		return nil, err
	}
	p := &power{region: s, count: count, own: own, additive: w.additive, unit: unit, want: unit}
	return p, errors.Join(m.register(w, s, name), m.setToUnit(w, p, bytes))
}

// setToUnit sets all integers to the unit.
func (m *testRank) setToUnit(w *testGroup, p *power, bytes int64) error {
	for at := int64(0); at < bytes; at += pinnedBytes {
		piece := m.pinned[:min(pinnedBytes, bytes-at)]
		for i := 0; i < len(piece); i += 4 {
			binary.LittleEndian.PutUint32(piece[i:], p.unit)
		}
		err := errors.Join(
			m.stream.Copy(p.segment.Address()+uintptr(at), dl.AddressOf(&piece[0]), int64(len(piece))),
			m.stream.Synchronize(w.t.Context()))
		if err != nil {
			return err
		}
	}
	return nil
}

// call returns the call that multiplies or adds the integers.
func (p *power) call(path driver.Path) driver.Call {
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int32, Count: p.count, Path: path, Digest: 3,
		Send: p.segment.Address(), Recv: p.segment.Address() + uintptr(p.own), SendWindow: p.window,
		RecvWindow: p.window,
	}
	if p.additive {
		call.Operation = driver.ReduceScatter
	}
	return call
}

// raise launches a call of a group and updates want. On the direct path, it first checks the
// kernel: a bulk kernel is expected if the count is at least countFor["bulk"].
func (p *power) raise(c driver.Communicator, on driver.Stream, path driver.Path) error {
	call, group := p.call(path), c.(*communicator)
	if path == driver.PathDirect {
		work, err := group.Offer(call).(*plan).choose()
		if err == nil {
			launch := work.(*kernels.Launch)
			if want := p.count >= countFor["bulk"]; launch.Bulk != want {
				return fmt.Errorf("%s of %d numbers: got bulk = %t, want %t", launch.Kernel,
					p.count, launch.Bulk, want)
			}
		}
	}
	plan, err := prepare(c, call)
	if err != nil {
		return err
	}
	p.countCalls(group, 1)
	return c.Launch(on, plan)
}

// countCalls updates want after calls of a group.
func (p *power) countCalls(c *communicator, calls int) {
	ranks := uint32(len(c.cfg.Ranks))
	for range calls {
		if p.additive {
			p.want += (ranks - 1) * p.unit
		} else {
			p.want *= ranks
		}
	}
}

// replay launches a graph that contains a number of calls of the rank's group, and updates want.
func (p *power) replay(m *testRank, g driver.Graph, on driver.Stream, calls int) error {
	p.countCalls(m.group.(*communicator), calls)
	return g.Launch(on)
}

// check waits for streams and checks the integers.
func (m *testRank) check(w *testGroup, p *power, streams ...driver.Stream) error {
	for _, s := range streams {
		if err := s.Synchronize(w.t.Context()); err != nil {
			return err
		}
	}
	got, err := m.readDevice(w, p.segment.Address()+uintptr(p.own), 4*p.count)
	if err != nil {
		return err
	}
	for i := range p.count {
		if v := binary.LittleEndian.Uint32(got[4*i:]); v != p.want {
			return fmt.Errorf("number %d is %d, want %d", i, v, p.want)
		}
	}
	return nil
}
