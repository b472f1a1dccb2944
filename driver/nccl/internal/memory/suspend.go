package memory

import (
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// Suspending a segment frees its GPU memory for other programs, and keeps its addresses reserved.
// Resuming it allocates new memory at these addresses and can restore the contents.

var _ driver.SuspendableSegment = (*Segment)(nil)

// PrepareSuspend checks that the memory can be freed, and copies the contents to host memory if
// save is set. It returns ErrBusy while a kernel of a closed stream or group may use the memory. It
// also returns ErrBusy while NCCL may have mapped the memory on other ranks for a graph, whose
// kernels would still access the old memory after Resume.
func (s *Segment) PrepareSuspend(save bool) error {
	m := s.arena.memory
	g := m.gpu
	if _, err := g.Reclaim(); err != nil { // frees what earlier calls could not free yet
		return err
	}

	if m.NCCLMapsCaptured && m.UseCounts.hasPlainCalls(&s.UseCount) {
		return fmt.Errorf("a graph contains calls on NCCL's plain path, which may have mapped the "+
			"memory on other ranks: close the graph, or start the program with NCCL_GRAPH_REGISTER=0: %w",
			driver.ErrBusy)
	}

	const isUnmapping = false // after an error, the segment stays mapped
	if err := m.releaseOnPeers(&s.UseCount, isUnmapping); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}

	s.savedContents = nil // an earlier PrepareSuspend may have set it
	if !save {
		return nil
	}

	return s.saveContents()
}

// checkSuspendable returns an error if the segment cannot be suspended now. The caller must hold
// s.mu.
func (s *Segment) checkSuspendable() error {
	switch {
	case s.isUnmapped:
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.isSuspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	case s.arena.memory.gpu.MustKeepMemory():
		return fmt.Errorf("a kernel of a closed stream or group is still running: %w", driver.ErrBusy)
	}

	return nil
}

// Suspend unmaps the memory. CUDA frees it once other ranks have also unmapped it.
func (s *Segment) Suspend() error {
	g := s.arena.memory.gpu
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped || s.isSuspended {
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}

	s.isSuspended = true
	return g.Do(s.removeMappings)
}

// Resume allocates new memory at the same addresses and restores the saved contents. If it fails,
// the segment stays suspended, and Resume can be called again.
func (s *Segment) Resume() error {
	s.arena.memory.gpu.ReclaimBeforeMap() // an earlier Resume may have left the addresses mapped
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}

	if s.isSuspended {
		if err := s.allocateAndMapAgain(); err != nil {
			return fmt.Errorf("mapping %d bytes again: %w", s.bytes, err)
		}

		if err := s.restoreContents(); err != nil {
			freeErr := s.free() // requires that isSuspended is false
			s.isSuspended = true
			return fmt.Errorf("restoring a segment: %w", errors.Join(err, freeErr))
		}
	}

	s.savedContents = nil
	return nil
}

// allocateAndMapAgain is allocateAndMap for a suspended segment. It clears isSuspended on success.
// The caller must hold s.mu.
func (s *Segment) allocateAndMapAgain() error {
	// After an error, allocateAndMap calls free, which requires that isSuspended is false.
	s.isSuspended = false
	err := s.arena.memory.gpu.Do(s.allocateAndMap)
	s.isSuspended = err != nil
	return err
}

// saveContents copies the segment to savedContents. The caller must hold s.mu.
func (s *Segment) saveContents() error {
	contents := make([]byte, s.bytes)
	if err := s.copyContents(contents, dl.AddressOf(&contents[0]), s.Address()); err != nil {
		return fmt.Errorf("copying a segment to host memory: %w", err)
	}

	s.savedContents = contents
	return nil
}

// restoreContents copies savedContents, if any, to the segment. The caller must hold s.mu.
func (s *Segment) restoreContents() error {
	if s.savedContents == nil {
		return nil
	}

	savedAddress := dl.AddressOf(&s.savedContents[0])
	return s.copyContents(s.savedContents, s.Address(), savedAddress)
}

// copyContents copies the segment to hostMemory or back. src and dst are their addresses.
func (s *Segment) copyContents(hostMemory []byte, dst, src uintptr) error {
	g := s.arena.memory.gpu
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, s.bytes, stream)
		})
	})
	runtime.KeepAlive(hostMemory) // CUDA only knows its address
	return err
}
