package memory

import (
	"errors"
	"fmt"
	"runtime"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

var _ driver.SuspendableSegment = (*Segment)(nil)

// PrepareSuspend copies the contents to host memory if save is set. It returns ErrBusy if a kernel
// on a closed stream may still use the memory.
func (s *Segment) PrepareSuspend(save bool) error {
	g := s.arena.memory.gpu
	if _, err := g.Reclaim(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.unmapped:
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.suspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	case g.MustKeepMemory():
		return fmt.Errorf("a kernel of a closed stream or group is still running: %w", driver.ErrBusy)
	}
	s.saved = nil
	if !save {
		return nil
	}
	saved := make([]byte, s.bytes)
	if err := s.copy(saved, dl.AddressOf(&saved[0]), s.Address()); err != nil {
		return fmt.Errorf("copying a segment to host memory: %w", err)
	}
	s.saved = saved
	return nil
}

// Suspend unmaps both mappings. The driver frees the memory once the peers have unmapped it, too.
func (s *Segment) Suspend() error {
	g := s.arena.memory.gpu
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped || s.suspended {
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}
	s.suspended = true
	return g.Do(func() error {
		return errors.Join(g.CUDA.Unmap(s.Address(), s.bytes),
			g.CUDA.Unmap(s.secondAddress(), s.bytes))
	})
}

// Resume allocates memory and maps it at both addresses.
func (s *Segment) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}
	saved := s.saved
	if !s.suspended {
		saved = nil
	} else if err := s.recreate(); err != nil {
		return fmt.Errorf("mapping %d bytes again: %w", s.bytes, err)
	}
	s.saved = nil
	if saved == nil {
		return nil
	}
	if err := s.copy(saved, s.Address(), dl.AddressOf(&saved[0])); err != nil {
		return fmt.Errorf("restoring a segment: %w", err)
	}
	return nil
}

func (s *Segment) recreate() error {
	s.suspended = false // else release, which create calls if it fails, would do nothing
	err := s.arena.memory.gpu.Do(s.create)
	s.suspended = err != nil
	return err
}

// copy copies the segment's contents. One of src and dst must be the address of host.
func (s *Segment) copy(host []byte, dst, src uintptr) error {
	g := s.arena.memory.gpu
	err := g.Do(func() error {
		return g.InternalStream.Run(g, func(stream cuda.Stream) error {
			return g.CUDA.MemcpyAsync(dst, src, s.bytes, stream)
		})
	})
	runtime.KeepAlive(host)
	return err
}
