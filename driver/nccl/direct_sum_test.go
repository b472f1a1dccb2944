package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/dl"
)

// repeatedSum is a rank's buffer for identical in-place calls. Each call changes all elements from
// one known value to the next, so the values reveal missing and repeated calls. With 3 ranks and
// the initial value 1:
//
//	AllReduce      1, 3, 9, 27, ... (with 2 ranks, 32 doublings overflow to 0)
//	ReduceScatter  1, 3, 5, 7, ...
type repeatedSum struct {
	*region
	count      int64 // elements that a call changes
	offset     int64 // of these elements in the region, in bytes
	isAdditive bool  // calls are ReduceScatters, which add the other ranks' initial values
	initial    uint32
	want       uint32 // expected value after the calls so far
}

const int32Bytes = 4

// smallCount is for tests in which the number of elements does not matter.
const smallCount = 1000

// windowName identifies a rank's window in tests that need only one.
const windowName = 1

// newRepeatedSum allocates a buffer and registers it under the given name. All ranks must call it.
func (r *testRank) newRepeatedSum(g *testGroup, name uint32, count int64) (*repeatedSum, error) {
	initial := 1 + 1000*(name-1) // reveals a call on the wrong buffer
	cfg := &r.group.(*communicator).cfg
	partBytes := int32Bytes * count
	bytes, offset := partBytes, int64(0)
	if g.hasAdditiveSums { // the buffer has a part for each rank
		bytes = partBytes * int64(len(cfg.Ranks))
		offset = partBytes * int64(cfg.Rank)
	}

	buffer, err := r.mapRegion(bytes)
	if err != nil {
		return nil, err
	}

	s := &repeatedSum{
		region: buffer, count: count, offset: offset, isAdditive: g.hasAdditiveSums,
		initial: initial, want: initial,
	}
	err = r.register(g, buffer, name)
	return s, errors.Join(err, r.setElements(g, buffer, bytes, initial))
}

// setElements fills the first bytes of a buffer with value.
func (r *testRank) setElements(g *testGroup, buffer *region, bytes int64, value uint32) error {
	for at := int64(0); at < bytes; at += pinnedBytes {
		piece := r.pinned[:min(pinnedBytes, bytes-at)]
		for i := 0; i < len(piece); i += int32Bytes {
			binary.LittleEndian.PutUint32(piece[i:], value)
		}

		to := buffer.segment.Address() + uintptr(at)
		from := dl.AddressOf(&piece[0])
		if err := r.stream.Copy(to, from, int64(len(piece))); err != nil {
			return err
		}

		if err := r.stream.Synchronize(g.t.Context()); err != nil {
			return err
		}
	}

	return nil
}

func (s *repeatedSum) call(path driver.Path) driver.Call {
	const digest = 3 // arbitrary, but equal on all ranks
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Int32, Count: s.count, Path: path, Digest: digest,
		Send: s.segment.Address(), Recv: s.segment.Address() + uintptr(s.offset),
		SendWindow: s.window, RecvWindow: s.window,
	}
	if s.isAdditive {
		call.Operation = driver.ReduceScatter
	}

	return call
}

// launch launches the next call and updates s.want.
func (s *repeatedSum) launch(c driver.Communicator, stream driver.Stream, path driver.Path) error {
	call := s.call(path)
	group := c.(*communicator)
	if path == driver.PathDirect {
		if err := s.checkKernel(group, call); err != nil {
			return err
		}
	}

	plan, err := prepare(c, call)
	if err != nil {
		return err
	}

	s.countCalls(group, 1)
	return c.Launch(stream, plan)
}

// checkKernel checks that only large calls use a bulk kernel.
func (s *repeatedSum) checkKernel(c *communicator, call driver.Call) error {
	work, refusal := c.Offer(call).(*plan).choose()
	if refusal != nil {
		return nil //nolint:nilerr // prepare also returns the refusal
	}

	launch := work.(*kernels.Launch)
	wantBulk := s.count >= countFor["bulk"]
	if launch.Bulk != wantBulk {
		return fmt.Errorf("the call of %d elements uses %s, with Bulk = %t, want %t", s.count,
			launch.Kernel, launch.Bulk, wantBulk)
	}

	return nil
}

// countCalls updates s.want for further calls.
func (s *repeatedSum) countCalls(c *communicator, calls int) {
	ranks := uint32(len(c.cfg.Ranks))
	for range calls {
		if s.isAdditive {
			s.want += (ranks - 1) * s.initial
		} else {
			s.want *= ranks
		}
	}
}

// replay launches a graph that contains the given number of calls, and updates s.want.
func (s *repeatedSum) replay(
	r *testRank, graph driver.Graph, stream driver.Stream, calls int,
) error {
	s.countCalls(r.group.(*communicator), calls)
	return graph.Launch(stream)
}

// check waits for the streams and compares the elements with sum.want.
func (r *testRank) check(g *testGroup, sum *repeatedSum, streams ...driver.Stream) error {
	for _, s := range streams {
		if err := s.Synchronize(g.t.Context()); err != nil {
			return err
		}
	}

	start := sum.segment.Address() + uintptr(sum.offset)
	elements, err := r.readDevice(g, start, int32Bytes*sum.count)
	if err != nil {
		return err
	}

	for i := range sum.count {
		if got := binary.LittleEndian.Uint32(elements[int32Bytes*i:]); got != sum.want {
			return fmt.Errorf("element %d is %d, want %d", i, got, sum.want)
		}
	}

	return nil
}
