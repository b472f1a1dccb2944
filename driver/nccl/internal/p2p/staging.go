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

// staging is device memory of this rank in which messages wait for their receivers. These map its
// first segment when the group connects, and others at the first message from one. It grows, and
// goes back with the group.
type staging struct {
	segments []*stagingSegment
	bytes    int64 // of all segments
}

// stagingSegment is one allocation.
type stagingSegment struct {
	base  uintptr
	bytes int64
	free  []span // by offset; neighbours are one
	file  *os.File
}

// span is a range of a segment.
type span struct{ offset, bytes int64 }

// block is where a message is in staging: nowhere if it has no bytes.
type block struct {
	segment int // its number, from 1, or 0
	span
}

const (
	// blockUnit is the granularity of block sizes in bytes.
	blockUnit = 512
	// perPeer is how much staging begins with for each rank of a group.
	perPeer = 2 << 20
	// mostSpare is by how much staging grows at most beyond what is asked for.
	mostSpare = 64 << 20
)

func roundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// take finds a block, in the smallest free span that is large enough.
func (s *staging) take(bytes int64) (b block, ok bool) {
	if bytes == 0 {
		return block{}, true
	}
	bytes = roundUp(bytes, blockUnit)
	var in *stagingSegment
	at := 0
	for i, segment := range s.segments {
		for k, f := range segment.free {
			if f.bytes >= bytes && (in == nil || f.bytes < in.free[at].bytes) {
				in, at, b.segment = segment, k, i+1
			}
		}
	}
	if in == nil {
		return block{}, false
	}
	f := &in.free[at]
	b.span = span{f.offset, bytes}
	f.offset, f.bytes = f.offset+bytes, f.bytes-bytes
	if f.bytes == 0 {
		in.free = slices.Delete(in.free, at, at+1)
	}
	return b, true
}

// put takes a block back.
func (s *staging) put(b block) {
	if b.segment == 0 {
		return
	}
	in := s.segments[b.segment-1]
	at, _ := slices.BinarySearchFunc(in.free, b.offset, func(f span, offset int64) int {
		return int(f.offset - offset)
	})
	in.free = slices.Insert(in.free, at, b.span)
	if at+1 < len(in.free) && b.offset+b.bytes == in.free[at+1].offset {
		in.free[at].bytes += in.free[at+1].bytes
		in.free = slices.Delete(in.free, at+1, at+2)
	}
	if at > 0 && in.free[at-1].offset+in.free[at-1].bytes == b.offset {
		in.free[at-1].bytes += in.free[at].bytes
		in.free = slices.Delete(in.free, at, at+1)
	}
}

// address is where a block lies on this rank.
func (s *staging) address(b block) uintptr {
	if b.segment == 0 {
		return 0
	}
	return s.segments[b.segment-1].base + uintptr(b.offset)
}

func stagingKey(group string, segment int) handoff.Key {
	return handoff.Key{Space: handoff.Space("staging/" + group), Number: uint32(segment)}
}

// FirstStaging is the size of the first segment of every rank of a group.
func (g *Group) FirstStaging() int64 {
	return roundUp(int64(len(g.Config.Ranks))*perPeer, g.Device.GPU.Granularity)
}

// grow maps a segment that fits a block of this size: as large as all others together, or just
// large enough if the device has no memory for that.
func (s *staging) grow(g *Group, bytes int64) error {
	d := g.Device
	least := roundUp(bytes, d.GPU.Granularity)
	err := s.add(g, max(least, roundUp(min(s.bytes, mostSpare), d.GPU.Granularity)))
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = s.add(g, least)
	}
	if errors.Is(err, cuda.ErrOutOfMemory) {
		return &driver.OutOfMemoryError{Requested: least, Cause: err}
	}
	return err
}

// add makes a segment and offers it to the others.
func (s *staging) add(g *Group, bytes int64) error {
	d := g.Device
	return d.GPU.Do(func() error {
		prop := cuda.PinnedMemory(d.GPU.Device, cuda.HandlePosixFD, false)
		handle, err := d.GPU.CUDA.Create(bytes, prop)
		if err != nil {
			return fmt.Errorf("making memory for messages: %w", err)
		}
		defer d.GPU.Release(handle)
		at, err := d.GPU.Map(handle, bytes)
		if err != nil {
			return err
		}
		f, err := d.Exporter.Export(stagingKey(g.Config.ID, len(s.segments)+1), handle)
		if err != nil {
			return errors.Join(err, d.GPU.Unmap(at, bytes))
		}
		s.segments = append(s.segments, &stagingSegment{
			base: at, bytes: bytes, free: []span{{0, bytes}}, file: f,
		})
		s.bytes += bytes
		return nil
	})
}

// close frees the segments. Ranks that have mapped them keep them, as all have the first one;
// segments that they have not mapped, and still need, stay shared until the device closes.
func (s *staging) close(g *Group, needed bool) error {
	d := g.Device
	var errs []error
	for i, segment := range s.segments {
		withdraw := func() error {
			return d.Exporter.Withdraw(stagingKey(g.Config.ID, i+1), segment.file)
		}
		if needed && i > 0 {
			d.atClose(withdraw)
		} else {
			errs = append(errs, withdraw())
		}
		errs = append(errs, d.GPU.Do(func() error { return d.GPU.Unmap(segment.base, segment.bytes) }))
	}
	s.segments = nil
	return errors.Join(errs...)
}
