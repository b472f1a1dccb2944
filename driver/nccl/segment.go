package nccl

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// segment is one physical allocation, mapped whole at two addresses.
//
// States: mapped; unmapped. While it is mapped it may be registered with communicators: as a
// window, by agreement of all ranks (over the first mapping), and locally (over the second).
type segment struct {
	arena  *arena
	offset int64
	bytes  int64
	keeper keeper

	mu       ranked.Mutex[segmentMu]
	unmapped bool // guarded by mu
}

// Address returns where the segment is mapped.
func (s *segment) Address() uintptr { return s.arena.base + uintptr(s.offset) }

// Bytes returns the segment's size.
func (s *segment) Bytes() int64 { return s.bytes }

// plainAddress is where the segment is mapped without a window.
func (s *segment) plainAddress() uintptr { return s.arena.alias + uintptr(s.offset) }

// create allocates and maps the memory and sets it to zero: a driver hands back what this process
// left in it.
func (s *segment) create() error {
	d := s.arena.device
	handle, err := s.allocate()
	if err != nil {
		return err
	}
	// The mappings keep the memory; the handle is not needed any more.
	defer d.release(handle)
	if err := s.mapAt(s.Address(), handle); err != nil {
		return err
	}
	if err := s.mapAt(s.plainAddress(), handle); err != nil {
		return errors.Join(err, d.cuda.Unmap(s.Address(), s.bytes))
	}
	err = d.aside.zero(d, s.Address(), s.bytes)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return err // by which the device may be about to write to the memory, so it stays
	}
	return errors.Join(err, s.release())
}

// allocate makes physical memory.
func (s *segment) allocate() (cuda.Handle, error) {
	d := s.arena.device
	handle, err := d.cuda.Create(s.bytes, d.prop)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: s.bytes, Cause: err}
	}
	return handle, err
}

// release gives up a handle whose memory is kept by mappings, or not wanted.
func (d *Device) release(handle cuda.Handle) { _ = d.cuda.Release(handle) }

func (s *segment) mapAt(address uintptr, handle cuda.Handle) error {
	d := s.arena.device
	if err := d.cuda.Map(address, s.bytes, 0, handle); err != nil {
		return err
	}
	if err := d.cuda.SetAccess(address, s.bytes, d.reach...); err != nil {
		return errors.Join(err, d.cuda.Unmap(address, s.bytes))
	}
	return nil
}

// release takes both mappings away, and with them the memory. While a kernel is stuck it keeps them
// until the process ends: the driver may wait for the whole device before it unmaps.
func (s *segment) release() error {
	if stuck.Load() {
		return nil
	}
	d := s.arena.device
	return errors.Join(d.cuda.Unmap(s.Address(), s.bytes),
		d.cuda.Unmap(s.plainAddress(), s.bytes))
}

// Keep does nothing: a segment has no handle.
func (s *segment) Keep() error { return nil }

// Unmap gives the memory back. Where graphs of other libraries have calls on it, it comes back when
// they are gone.
func (s *segment) Unmap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}
	s.unmapped = true
	d := s.arena.device
	unmap := func() error {
		d.unlist(s)
		return d.do(s.release)
	}
	if d.putOff(&s.keeper, &s.arena.keeper, func() { _ = unmap() }) {
		return nil
	}
	return unmap()
}
