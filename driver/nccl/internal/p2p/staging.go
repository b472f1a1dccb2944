package p2p

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// Each GPU has staging memory for the messages that it sends. For example, rank 0 sends 1000 bytes
// to rank 1. It allocates a block of 1024 bytes, and its GPU copies the message there. Rank 1's GPU
// copies the message from the block. Then rank 0 frees the block.
//
// A block is a part of a segment. In a group of 2 ranks, the first segment has 4 MiB, and all ranks
// map it when the group connects. When it is too full for a message, rank 0 usually adds a second
// segment of 4 MiB. Rank 1 maps it when it first needs it. The third segment has 8 MiB, and so on.

// staging allocates blocks of staging memory.
type staging struct {
	device   *Device
	segments []*stagingSegment // segment number n, from 1, is at index n-1
	bytes    int64             // total size of the segments
}

// stagingSegment is an allocation of GPU memory that other ranks can map. If the group is
// suspended, the memory is freed for a while, but its addresses stay reserved.
type stagingSegment struct {
	base      uintptr
	bytes     int64
	freeSpans []span   // free parts, sorted by offset; no two are adjacent
	file      *os.File // by which other ranks map the memory; nil while suspended
}

// span is a part of a segment.
type span struct{ offset, bytes int64 }

func (s span) end() int64 { return s.offset + s.bytes }

// block is the memory of one message.
type block struct {
	segment int // number of the segment, from 1, or 0 for an empty message
	span        // zero for an empty message
}

const (
	// Block sizes are multiples of blockUnit.
	blockUnit = 512
	// The first segment has initialBytesPerRank for each rank of the group.
	initialBytesPerRank = 2 << 20
	// maxNewSegment limits the size of a new segment, unless one block is larger.
	maxNewSegment = 64 << 20
)

func roundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// allocateBlock allocates a block in the smallest free span that is large enough. ok is false if
// there is none. An empty message needs no memory.
func (s *staging) allocateBlock(bytes int64) (b block, ok bool) {
	if bytes == 0 {
		return block{}, true
	}

	bytes = roundUp(bytes, blockUnit)
	segment, spanIndex := s.findSpan(bytes)
	if segment == 0 {
		return block{}, false
	}

	offset := s.segments[segment-1].takeFrom(spanIndex, bytes)
	return block{segment: segment, span: span{offset: offset, bytes: bytes}}, true
}

// findSpan finds the smallest free span with at least the given size. It returns the number of the
// segment, or 0 if there is no such span, and the index in its freeSpans.
func (s *staging) findSpan(bytes int64) (segment, spanIndex int) {
	var smallest int64 // size of the best span up to now
	for i, candidate := range s.segments {
		for k, free := range candidate.freeSpans {
			isLarge := free.bytes >= bytes
			isBetter := segment == 0 || free.bytes < smallest
			if isLarge && isBetter {
				segment = i + 1
				spanIndex = k
				smallest = free.bytes
			}
		}
	}

	return segment, spanIndex
}

// takeFrom takes bytes from the start of a free span, and returns their offset.
func (s *stagingSegment) takeFrom(spanIndex int, bytes int64) (offset int64) {
	free := &s.freeSpans[spanIndex]
	offset = free.offset
	free.offset += bytes
	free.bytes -= bytes
	if free.bytes == 0 {
		s.freeSpans = slices.Delete(s.freeSpans, spanIndex, spanIndex+1)
	}

	return offset
}

// freeBlock frees a block and merges it with the adjacent free spans.
func (s *staging) freeBlock(b block) {
	if b.segment == 0 {
		return
	}

	segment := s.segments[b.segment-1]
	spans := segment.freeSpans
	// i is the index at which the block's span must be inserted, because no free span begins at the
	// block's offset.
	i, _ := slices.BinarySearchFunc(spans, b.offset, func(free span, offset int64) int {
		return cmp.Compare(free.offset, offset)
	})
	spans = slices.Insert(spans, i, b.span)
	hasFreeAfter := i+1 < len(spans) && spans[i].end() == spans[i+1].offset
	if hasFreeAfter {
		spans[i].bytes += spans[i+1].bytes
		spans = slices.Delete(spans, i+1, i+2)
	}

	hasFreeBefore := i > 0 && spans[i-1].end() == spans[i].offset
	if hasFreeBefore {
		spans[i-1].bytes += spans[i].bytes
		spans = slices.Delete(spans, i, i+1)
	}

	segment.freeSpans = spans
}

// address returns the device address of a block, or 0 for that of an empty message.
func (s *staging) address(b block) uintptr {
	if b.segment == 0 {
		return 0
	}

	return s.segments[b.segment-1].base + uintptr(b.offset)
}

// grow adds a segment with room for a block of the given size. If possible, the segment is as
// large as all segments before it together, up to maxNewSegment.
func (s *staging) grow(config *driver.GroupConfig, bytes int64) error {
	granularity := s.device.GPU.Granularity
	minBytes := roundUp(bytes, granularity)
	doublingBytes := roundUp(min(s.bytes, maxNewSegment), granularity) // doubles the total size
	err := s.addSegment(config, max(minBytes, doublingBytes))
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = s.addSegment(config, minBytes)
	}

	if errors.Is(err, cuda.ErrOutOfMemory) {
		return &driver.OutOfMemoryError{Requested: minBytes, Cause: err}
	}

	return err
}

// addSegment adds a segment of the given size. After an error, staging is unchanged.
func (s *staging) addSegment(config *driver.GroupConfig, bytes int64) error {
	g := s.device.GPU
	return g.Do(func() error {
		base, err := g.CUDA.AddressReserve(bytes, g.Granularity)
		if err != nil {
			return err
		}

		all := span{offset: 0, bytes: bytes}
		segment := &stagingSegment{base: base, bytes: bytes, freeSpans: []span{all}}
		number := len(s.segments) + 1
		if err := s.allocateSegment(config, number, segment); err != nil {
			freeErr := g.CUDA.AddressFree(base, bytes)
			return errors.Join(err, freeErr)
		}

		s.segments = append(s.segments, segment)
		s.bytes += bytes
		return nil
	})
}

// stagingKey identifies a segment when other ranks request its file. segment is its number, from 1.
func stagingKey(group string, segment int) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("staging/" + group), Number: uint32(segment)}
}

// allocateSegment allocates a segment's memory, maps it at the reserved addresses, and exports it
// to other ranks as a file. The CUDA context must be current.
func (s *staging) allocateSegment(
	config *driver.GroupConfig, number int, segment *stagingSegment,
) error {
	d := s.device
	const rdma = false // only GPUs of this machine access the memory
	prop := cuda.PinnedMemory(d.GPU.Device, cuda.HandlePosixFD, rdma)
	handle, err := d.GPU.CUDA.Create(segment.bytes, prop)
	if err != nil {
		return fmt.Errorf("allocating memory for messages: %w", err)
	}
	defer d.GPU.Release(handle) // the mapping and the file keep the memory
	if err := d.GPU.MapAt(segment.base, handle, segment.bytes); err != nil {
		return err
	}

	segment.file, err = d.Exporter.Export(stagingKey(config.ID, number), handle)
	if err != nil {
		unmapErr := d.GPU.CUDA.Unmap(segment.base, segment.bytes)
		return errors.Join(err, unmapErr)
	}

	return nil
}

// freeSegments frees the memory of the first n segments. Their addresses stay reserved. The CUDA
// context must be current.
func (s *staging) freeSegments(config *driver.GroupConfig, n int) error {
	d := s.device
	var errs []error
	for i, segment := range s.segments[:n] {
		withdrawErr := d.Exporter.Withdraw(stagingKey(config.ID, i+1), segment.file)
		unmapErr := d.GPU.CUDA.Unmap(segment.base, segment.bytes)
		errs = append(errs, withdrawErr, unmapErr)
		segment.file = nil
	}

	return errors.Join(errs...)
}

// close frees the segments. The mappings of peers are not affected.
//
// If peersNeedMemory is set, peers may still have to map segments in order to copy messages. In
// this case, all segments but the first, which peers have mapped, stay exported until the device is
// closed.
func (s *staging) close(config *driver.GroupConfig, peersNeedMemory bool) error {
	d := s.device
	var errs []error
	for i, segment := range s.segments {
		isSuspended := segment.file == nil
		if isSuspended { // only the addresses are left
			freeErr := d.GPU.Do(func() error {
				return d.GPU.CUDA.AddressFree(segment.base, segment.bytes)
			})
			errs = append(errs, freeErr)
			continue
		}

		withdraw := func() error {
			return d.Exporter.Withdraw(stagingKey(config.ID, i+1), segment.file)
		}
		isFirst := i == 0
		if peersNeedMemory && !isFirst {
			d.onClose(withdraw)
		} else {
			withdrawErr := withdraw()
			errs = append(errs, withdrawErr)
		}

		unmapErr := d.GPU.Do(func() error { return d.GPU.Unmap(segment.base, segment.bytes) })
		errs = append(errs, unmapErr)
	}

	s.segments = nil
	return errors.Join(errs...)
}
