package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/dl"
)

// power owns a buffer of integers on a rank. A call is an in-place all-reduce, which multiplies
// them by the number of ranks. With three ranks the integers stay odd forever, so every missing or
// repeated call is visible. With two ranks they would soon be 0. So if steps is set, the buffer has
// a part for each rank, and a call is an in-place reduce-scatter, which adds to the integers of a
// rank those at the same offset on the other ranks, which stay 1.
type power struct {
	*stretch
	count int64
	// own is the offset of this rank's integers, in bytes.
	own   int64
	steps bool
	// unit is the initial value of the integers, and the value that a call adds for each other rank.
	unit uint32
	// want is the expected value after all calls.
	want uint32
}

// newPower allocates a power in a window of the group. It is collective. The unit of the first
// power is 1.
func (m *testRank) newPower(w *testGroup, name uint32, count int64) (*power, error) {
	unit := 1 + 1000*(name-1)
	cfg, bytes, own := &m.group.(*communicator).cfg, 4*count, int64(0)
	if w.steps {
		bytes, own = bytes*int64(len(cfg.Ranks)), bytes*int64(cfg.Rank)
	}
	s, err := m.grow(bytes)
	if err != nil {
		return nil, err
	}
	p := &power{stretch: s, count: count, own: own, steps: w.steps, unit: unit, want: unit}
	return p, errors.Join(m.register(w, s, name), m.reset(w, p, bytes))
}

// reset sets all integers to the unit.
func (m *testRank) reset(w *testGroup, p *power, bytes int64) error {
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

// call returns the call that multiplies or adds.
func (p *power) call(path driver.Path) driver.Call {
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int32, Count: p.count, Path: path, Digest: 3,
		Send: p.segment.Address(), Recv: p.segment.Address() + uintptr(p.own), SendWindow: p.window,
		RecvWindow: p.window,
	}
	if p.steps {
		call.Operation = driver.ReduceScatter
	}
	return call
}

// raise queues a call of a group and counts it. On the direct path it checks that calls from
// sizes["buffers"] on, and no others, use a bulk kernel.
func (p *power) raise(c driver.Communicator, on driver.Stream, path driver.Path) error {
	call, group := p.call(path), c.(*communicator)
	if path == driver.PathDirect {
		launch, err := group.Offer(call).(*plan).choose()
		if want := p.count >= sizes["buffers"]; err == nil && launch.Bulk != want {
			return fmt.Errorf("%s of %d numbers: bulk kernel %v, want %v", launch.Kernel, p.count,
				launch.Bulk, want)
		}
	}
	plan, err := prepare(c, call)
	if err != nil {
		return err
	}
	p.ran(group, 1)
	return c.Launch(on, plan)
}

// ran counts calls of a group.
func (p *power) ran(c *communicator, calls int) {
	ranks := uint32(len(c.cfg.Ranks))
	for range calls {
		if p.steps {
			p.want += (ranks - 1) * p.unit
		} else {
			p.want *= ranks
		}
	}
}

// replay launches a graph with a number of calls of the rank's group, and counts them.
func (p *power) replay(m *testRank, g driver.Graph, on driver.Stream, calls int) error {
	p.ran(m.group.(*communicator), calls)
	return g.Launch(on)
}

// check waits for streams and compares the integers.
func (m *testRank) check(w *testGroup, p *power, behind ...driver.Stream) error {
	for _, s := range behind {
		if err := s.Synchronize(w.t.Context()); err != nil {
			return err
		}
	}
	got, err := m.copied(w, p.segment.Address()+uintptr(p.own), 4*p.count)
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
