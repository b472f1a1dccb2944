package p2p

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// staging allocates blocks of device memory, which hold messages until the receivers copy them.
// Blocks are parts of segments. Receivers map the first segment when the group connects, and each
// other segment when it is first used.
type staging struct {
	device   *Device
	segments []*stagingSegment
	bytes    int64 // total size of the segments
}

// stagingSegment is an allocation. Its addresses stay reserved while it is suspended.
type stagingSegment struct {
	base      uintptr
	bytes     int64
	freeSpans []span   // sorted by offset
	file      *os.File // exported file of the memory; nil while suspended
}

type span struct{ offset, bytes int64 } // offset is from the start of the segment

type block struct {
	segment int // number of the segment, from 1, or 0 for an empty message
	span
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
// there is none.
func (s *staging) allocateBlock(bytes int64) (b block, ok bool) {
	if bytes == 0 {
		return block{}, true
	}
	bytes = roundUp(bytes, blockUnit)
	var best *stagingSegment
	spanIndex := 0 // in best.freeSpans
	for i, segment := range s.segments {
		for k, free := range segment.freeSpans {
			if free.bytes >= bytes && (best == nil || free.bytes < best.freeSpans[spanIndex].bytes) {
				best, spanIndex, b.segment = segment, k, i+1
			}
		}
	}
	if best == nil {
		return block{}, false
	}
	free := &best.freeSpans[spanIndex]
	b.span = span{free.offset, bytes}
	free.offset, free.bytes = free.offset+bytes, free.bytes-bytes
	if free.bytes == 0 {
		best.freeSpans = slices.Delete(best.freeSpans, spanIndex, spanIndex+1)
	}
	return b, true
}

// freeBlock frees a block and merges it with the adjacent free spans.
func (s *staging) freeBlock(b block) {
	if b.segment == 0 {
		return
	}
	segment := s.segments[b.segment-1]
	i, _ := slices.BinarySearchFunc(segment.freeSpans, b.offset, func(free span, offset int64) int {
		return int(free.offset - offset)
	})
	segment.freeSpans = slices.Insert(segment.freeSpans, i, b.span)
	if i+1 < len(segment.freeSpans) && b.offset+b.bytes == segment.freeSpans[i+1].offset {
		segment.freeSpans[i].bytes += segment.freeSpans[i+1].bytes
		segment.freeSpans = slices.Delete(segment.freeSpans, i+1, i+2)
	}
	if i > 0 && segment.freeSpans[i-1].offset+segment.freeSpans[i-1].bytes == b.offset {
		segment.freeSpans[i-1].bytes += segment.freeSpans[i].bytes
		segment.freeSpans = slices.Delete(segment.freeSpans, i, i+1)
	}
}

func (s *staging) address(b block) uintptr {
	if b.segment == 0 {
		return 0
	}
	return s.segments[b.segment-1].base + uintptr(b.offset)
}

func stagingKey(group string, segment int) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("staging/" + group), Number: uint32(segment)}
}

// grow adds a segment for at least one block of the given size. It tries to double the total size.
func (s *staging) grow(config *driver.GroupConfig, bytes int64) error {
	granularity := s.device.GPU.Granularity
	minBytes := roundUp(bytes, granularity)
	err := s.addSegment(config, max(minBytes, roundUp(min(s.bytes, maxNewSegment), granularity)))
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = s.addSegment(config, minBytes)
	}
	if errors.Is(err, cuda.ErrOutOfMemory) {
		return &driver.OutOfMemoryError{Requested: minBytes, Cause: err}
	}
	return err
}

func (s *staging) addSegment(config *driver.GroupConfig, bytes int64) error {
	g := s.device.GPU
	segment := &stagingSegment{bytes: bytes, freeSpans: []span{{0, bytes}}}
	return g.Do(func() (err error) {
		if segment.base, err = g.CUDA.AddressReserve(bytes, g.Granularity); err != nil {
			return err
		}
		if err := s.allocateSegment(config, len(s.segments)+1, segment); err != nil {
			return errors.Join(err, g.CUDA.AddressFree(segment.base, bytes))
		}
		s.segments = append(s.segments, segment)
		s.bytes += bytes
		return nil
	})
}

// allocateSegment allocates a segment's memory, maps it at the reserved addresses, and exports it.
// The CUDA context must be current.
func (s *staging) allocateSegment(
	config *driver.GroupConfig, number int, segment *stagingSegment,
) error {
	d := s.device
	const rdma = false
	prop := cuda.PinnedMemory(d.GPU.Device, cuda.HandlePosixFD, rdma)
	handle, err := d.GPU.CUDA.Create(segment.bytes, prop)
	if err != nil {
		return fmt.Errorf("allocating memory for messages: %w", err)
	}
	defer d.GPU.Release(handle)
	if err := d.GPU.MapAt(segment.base, handle, segment.bytes); err != nil {
		return err
	}
	segment.file, err = d.Exporter.Export(stagingKey(config.ID, number), handle)
	if err != nil {
		return errors.Join(err, d.GPU.CUDA.Unmap(segment.base, segment.bytes))
	}
	return nil
}

// freeSegments frees the memory of the first n segments, but keeps their addresses reserved. The
// CUDA context must be current.
func (s *staging) freeSegments(config *driver.GroupConfig, n int) error {
	d := s.device
	var errs []error
	for i, segment := range s.segments[:n] {
		errs = append(errs, d.Exporter.Withdraw(stagingKey(config.ID, i+1), segment.file),
			d.GPU.CUDA.Unmap(segment.base, segment.bytes))
		segment.file = nil
	}
	return errors.Join(errs...)
}

// close frees the segments, but peers keep their mappings. If peersNeedMemory is set, peers may
// still have to map segments, so all but the first stay exported until the device closes.
func (s *staging) close(config *driver.GroupConfig, peersNeedMemory bool) error {
	d := s.device
	var errs []error
	for i, segment := range s.segments {
		if segment.file == nil {
			errs = append(errs, d.GPU.Do(func() error {
				return d.GPU.CUDA.AddressFree(segment.base, segment.bytes)
			}))
			continue
		}
		withdraw := func() error {
			return d.Exporter.Withdraw(stagingKey(config.ID, i+1), segment.file)
		}
		if peersNeedMemory && i > 0 {
			d.onClose(withdraw)
		} else {
			errs = append(errs, withdraw())
		}
		errs = append(errs, d.GPU.Do(func() error { return d.GPU.Unmap(segment.base, segment.bytes) }))
	}
	s.segments = nil
	return errors.Join(errs...)
}
