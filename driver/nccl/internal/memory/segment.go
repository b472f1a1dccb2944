package memory

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Segment is a physical allocation that is mapped at two addresses. The first mapping can be
// registered with NCCL.
type Segment struct {
	arena    *Arena
	offset   int64
	bytes    int64
	UseCount UseCount

	mu            ranked.Mutex[segmentMu] // guards the following fields
	isUnmapped    bool
	isSuspended   bool
	savedContents []byte // contents for Resume to restore, or nil
}

// Address returns the address of the first mapping.
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
		return errors.Join(err, m.gpu.CUDA.Unmap(s.Address(), s.bytes))
	}
	if err := m.gpu.InternalStreams.Zero(m.gpu, s.Address(), s.bytes); err != nil {
		return errors.Join(err, s.free()) // deferred while the GPU might write zeros
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

// free unmaps both mappings once no kernel can use the memory. CUDA then frees the memory. It does
// nothing if the segment is suspended.
func (s *Segment) free() error {
	g := s.arena.memory.gpu
	if s.isSuspended { // does not change once isUnmapped is set
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

// Unmap frees the memory, at once or after the last graph that uses it has been destroyed: a graph
// of another library, or a graph with a call on NCCL's plain path.
func (s *Segment) Unmap() error {
	_, reclaimErr := s.arena.memory.gpu.Reclaim()
	return errors.Join(reclaimErr, s.unmap())
}

func (s *Segment) unmap() error {
	if err := s.markUnmapped(); err != nil {
		return err
	}
	if s.arena.memory.UseCounts.DeferUntilUnused(&s.UseCount, &s.arena.useCount, s.unmapUnused) {
		return nil
	}
	return s.unmapUnused()
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

// unmapUnused frees memory that no graph uses. The caller must not hold s.mu, because unmapUnused
// may wait for other ranks.
func (s *Segment) unmapUnused() error {
	m := s.arena.memory
	const isUnmapping = true
	err := m.releaseCaptured(&s.UseCount, isUnmapping)
	m.remove(s)
	return errors.Join(err, s.free())
}
