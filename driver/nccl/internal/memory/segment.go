package memory

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// A segment is an allocation of GPU memory. It lies in an arena, which has reserved two ranges of
// addresses, and is mapped in both ranges at the same offset. Only its address in the first range
// can be registered with NCCL. CUDA frees the memory when both mappings have been removed.

// Segment is an allocation of GPU memory that is mapped at two addresses.
type Segment struct {
	arena    *Arena
	offset   int64 // in both ranges of the arena
	bytes    int64
	UseCount UseCount // counts the graphs and windows that use the segment

	mu            ranked.Mutex[segmentMu] // guards the following fields
	isUnmapped    bool                    // Unmap has been called
	isSuspended   bool                    // Suspend has released the memory
	savedContents []byte                  // contents for Resume to restore, or nil
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
	defer m.gpu.Release(handle) // the mappings keep the memory
	if err := s.mapAt(s.Address(), handle); err != nil {
		return err
	}

	if err := s.mapAt(s.secondAddress(), handle); err != nil {
		unmapErr := m.gpu.CUDA.Unmap(s.Address(), s.bytes)
		return errors.Join(err, unmapErr)
	}

	if err := m.gpu.InternalStreams.Zero(m.gpu, s.Address(), s.bytes); err != nil {
		freeErr := s.free() // deferred while the GPU might write zeros
		return errors.Join(err, freeErr)
	}

	return nil
}

// allocate allocates memory that is not mapped.
func (s *Segment) allocate() (cuda.Handle, error) {
	m := s.arena.memory
	handle, err := m.gpu.CUDA.Create(s.bytes, m.gpu.SegmentProp)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: s.bytes, Cause: err}
	}

	return handle, err
}

// mapAt maps the memory at one address, for this GPU and all GPUs that can access its memory.
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

// Keep does nothing. A segment has no handle that it could keep, because mappings keep the memory.
func (s *Segment) Keep() error { return nil }

// Unmap frees the memory. If graphs use it, this happens after they have been destroyed. The graphs
// that count are those of other libraries, and those with an NCCL call outside windows (memory that
// is registered with NCCL).
func (s *Segment) Unmap() error {
	// Reclaim frees memory that earlier calls could not free yet.
	_, reclaimErr := s.arena.memory.gpu.Reclaim()
	unmapErr := s.unmap()
	return errors.Join(reclaimErr, unmapErr)
}

// unmap is Unmap without Reclaim.
func (s *Segment) unmap() error {
	if err := s.markUnmapped(); err != nil {
		return err
	}

	// While unmapUnused is deferred, the segment is a user of the arena, which keeps its addresses.
	if s.arena.memory.UseCounts.DeferUntilUnused(&s.UseCount, &s.arena.useCount, s.unmapUnused) {
		return nil
	}

	return s.unmapUnused()
}

// markUnmapped sets isUnmapped. It returns an error if that is already set.
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
	// For calls in graphs, NCCL may have mapped the memory on other ranks.
	releaseErr := m.releaseCaptured(&s.UseCount, isUnmapping)
	m.remove(s)
	freeErr := s.free()
	return errors.Join(releaseErr, freeErr)
}

// free removes both mappings once no kernel can use the memory. It does nothing if the segment is
// suspended, because Suspend has already removed them.
func (s *Segment) free() error {
	g := s.arena.memory.gpu
	if s.isSuspended { // needs no lock: it does not change once isUnmapped is set
		return nil
	}

	return g.FreeWhenIdle(func() error { return g.Do(s.removeMappings) })
}

// removeMappings removes both mappings. The CUDA context must be current.
func (s *Segment) removeMappings() error {
	g := s.arena.memory.gpu
	firstErr := g.CUDA.Unmap(s.Address(), s.bytes)
	secondErr := g.CUDA.Unmap(s.secondAddress(), s.bytes)
	return errors.Join(firstErr, secondErr)
}
