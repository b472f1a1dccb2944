package memory

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Segment is a physical allocation that is mapped as a whole at two addresses. The first mapping
// may be registered with communicators.
type Segment struct {
	arena  *Arena
	offset int64
	bytes  int64
	Uses   UseCount

	mu       ranked.Mutex[segmentMu] // guards the following fields
	unmapped bool
	// saved holds the contents that Resume restores, or nil.
	suspended bool
	saved     []byte
}

// Address returns the address of the first mapping.
func (s *Segment) Address() uintptr { return s.arena.base + uintptr(s.offset) }

// Bytes returns the segment's size.
func (s *Segment) Bytes() int64 { return s.bytes }

func (s *Segment) secondAddress() uintptr { return s.arena.secondBase + uintptr(s.offset) }

// create zeroes the memory, which may have old contents.
func (s *Segment) create() error {
	m := s.arena.memory
	handle, err := s.allocate()
	if err != nil {
		return err
	}
	defer m.gpu.Release(handle)
	if err := s.mapAt(s.Address(), handle); err != nil {
		return err
	}
	if err := s.mapAt(s.secondAddress(), handle); err != nil {
		return errors.Join(err, m.gpu.CUDA.Unmap(s.Address(), s.bytes))
	}
	if err := m.gpu.InternalStream.Zero(m.gpu, s.Address(), s.bytes); err != nil {
		return errors.Join(err, s.release()) // deferred while the device may write zeros
	}
	return nil
}

func (s *Segment) allocate() (cuda.Handle, error) {
	m := s.arena.memory
	handle, err := m.gpu.CUDA.Create(s.bytes, m.gpu.Prop)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: s.bytes, Cause: err}
	}
	return handle, err
}

func (s *Segment) mapAt(address uintptr, handle cuda.Handle) error {
	m := s.arena.memory
	if err := m.gpu.CUDA.Map(address, s.bytes, handle); err != nil {
		return err
	}
	if err := m.gpu.CUDA.SetAccess(address, s.bytes, m.gpu.Accessors...); err != nil {
		return errors.Join(err, m.gpu.CUDA.Unmap(address, s.bytes))
	}
	return nil
}

// release unmaps both mappings, and thereby frees the memory, once no kernel can use it.
func (s *Segment) release() error {
	g := s.arena.memory.gpu
	if s.suspended {
		return nil
	}
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error {
			return errors.Join(g.CUDA.Unmap(s.Address(), s.bytes),
				g.CUDA.Unmap(s.secondAddress(), s.bytes))
		})
	})
}

// Keep does nothing, because a segment holds no handle.
func (s *Segment) Keep() error { return nil }

// Unmap frees the memory, or defers that until graphs of other libraries that use it are destroyed.
func (s *Segment) Unmap() error {
	m := s.arena.memory
	_, reclaimErr := m.gpu.Reclaim()
	return errors.Join(reclaimErr, s.unmap())
}

func (s *Segment) unmap() error {
	m := s.arena.memory
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}
	s.unmapped = true
	unmap := func() error {
		m.remove(s)
		return s.release()
	}
	if m.UseCounts.DeferUntilUnused(&s.Uses, &s.arena.uses, func() { _ = unmap() }) {
		return nil
	}
	return unmap()
}
