package memory

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Segment is an allocation of GPU memory that is mapped in both address ranges of an arena. CUDA
// frees the memory once it has no mapping and no handle.
type Segment struct {
	UseCount UseCount // counts the graphs and windows that use the segment
	arena    *Arena
	offset   int64 // in both ranges of the arena
	bytes    int64

	mu            ranked.Mutex[segmentMu] // guards the following fields
	isUnmapped    bool                    // Unmap has been called
	isSuspended   bool
	savedContents []byte // for Resume to restore, or nil
}

// Address returns the address in the first range.
func (s *Segment) Address() uintptr { return s.arena.base + uintptr(s.offset) }

// Bytes returns the segment's size.
func (s *Segment) Bytes() int64 { return s.bytes }

func (s *Segment) secondAddress() uintptr { return s.arena.secondBase + uintptr(s.offset) }

// allocateAndMap allocates memory, maps it at both addresses, and fills it with zeros. The CUDA
// context must be current.
func (s *Segment) allocateAndMap() error {
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
		unmapErr := m.gpu.CUDA.Unmap(s.Address(), s.bytes)
		return errors.Join(err, unmapErr)
	}

	if err := m.gpu.InternalStreams.Zero(m.gpu, s.Address(), s.bytes); err != nil {
		freeErr := s.freeWhenIdle()
		return errors.Join(err, freeErr)
	}

	return nil
}

func (s *Segment) allocate() (cuda.Handle, error) {
	m := s.arena.memory
	handle, err := m.gpu.CUDA.Create(s.bytes, m.gpu.SegmentProp)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: s.bytes, Cause: err}
	}

	return handle, err
}

// mapAt maps the memory at an address, for access by this GPU and its peer GPUs.
func (s *Segment) mapAt(address uintptr, handle cuda.Handle) error {
	m := s.arena.memory
	if err := m.gpu.CUDA.Map(address, s.bytes, handle); err != nil {
		return err
	}

	if err := m.gpu.CUDA.SetAccess(address, s.bytes, m.gpu.Accessors...); err != nil {
		unmapErr := m.gpu.CUDA.Unmap(address, s.bytes)
		return errors.Join(err, unmapErr)
	}

	return nil
}

// Keep does nothing, because the memory stays allocated until Unmap.
func (s *Segment) Keep() error { return nil }

// Unmap frees the memory once UseCount has no users.
func (s *Segment) Unmap() error {
	_, reclaimErr := s.arena.memory.gpu.Reclaim() // frees what earlier calls could not free yet
	unmapErr := s.unmap()
	return errors.Join(reclaimErr, unmapErr)
}

func (s *Segment) unmap() error {
	if err := s.markUnmapped(); err != nil {
		return err
	}

	container := &s.arena.useCount
	isDeferred := s.arena.memory.UseCounts.DeferUntilUnused(&s.UseCount, container, s.free)
	if isDeferred {
		return nil
	}

	return s.free()
}

func (s *Segment) markUnmapped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}

	s.isUnmapped = true
	return nil
}

// free frees the memory of a segment that has no users and for which isUnmapped is set. It may wait
// for other ranks, so the caller must not hold s.mu.
func (s *Segment) free() error {
	m := s.arena.memory
	const isUnmapping = true
	releaseErr := m.releaseOnPeers(&s.UseCount, isUnmapping)
	m.remove(s)
	if s.isSuspended { // Suspend has removed the mappings
		return releaseErr
	}

	freeErr := s.freeWhenIdle()
	return errors.Join(releaseErr, freeErr)
}

// freeWhenIdle removes the mappings once no kernel can use the memory.
func (s *Segment) freeWhenIdle() error {
	g := s.arena.memory.gpu
	return g.FreeWhenIdle(func() error { return g.Do(s.removeMappings) })
}

// removeMappings unmaps both addresses. The CUDA context must be current.
func (s *Segment) removeMappings() error {
	g := s.arena.memory.gpu
	firstErr := g.CUDA.Unmap(s.Address(), s.bytes)
	secondErr := g.CUDA.Unmap(s.secondAddress(), s.bytes)
	return errors.Join(firstErr, secondErr)
}
