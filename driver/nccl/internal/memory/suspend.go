package memory

import (
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// A suspended segment keeps its addresses, but not its GPU memory.
var _ driver.SuspendableSegment = (*Segment)(nil)

// PrepareSuspend checks that the memory can be freed, and copies the contents to host memory if
// save is set. It returns ErrBusy while a kernel of a closed stream or group is running, or while
// NCCL may map the memory on other ranks for a graph.
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

	const isUnmapping = false
	if err := m.releaseOnPeers(&s.UseCount, isUnmapping); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}

	s.savedContents = nil
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

// Suspend unmaps the memory. CUDA frees the memory after other ranks have unmapped it as well.
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
	s.arena.memory.gpu.ReclaimBeforeMap() // removes mappings that a failed Resume may have left
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}

	if s.isSuspended {
		if err := s.mapAndRestore(); err != nil {
			return err
		}
	}

	s.isSuspended = false
	s.savedContents = nil
	return nil
}

// mapAndRestore maps new memory and copies savedContents to it. After an error, it frees the
// memory. The caller must hold s.mu.
func (s *Segment) mapAndRestore() error {
	if err := s.arena.memory.gpu.Do(s.allocateAndMap); err != nil {
		return fmt.Errorf("mapping %d bytes again: %w", s.bytes, err)
	}

	if err := s.restoreContents(); err != nil {
		freeErr := s.freeWhenIdle()
		return fmt.Errorf("restoring a segment: %w", errors.Join(err, freeErr))
	}

	return nil
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

// copyContents copies from address src to address dst: one is the segment, the other hostMemory.
func (s *Segment) copyContents(hostMemory []byte, dst, src uintptr) error {
	g := s.arena.memory.gpu
	err := g.Do(func() error {
		return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, s.bytes, stream)
		})
	})
	runtime.KeepAlive(hostMemory)
	return err
}
