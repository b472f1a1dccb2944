package memory

import (
	"errors"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Scratch allocates a small buffer for the all-reduces that implement barriers.
type Scratch struct {
	mu      ranked.Mutex[scratchMu] // guards the following fields
	arena   driver.Arena
	segment driver.Segment
}

// Address returns the address of the buffer, which the first call allocates.
func (s *Scratch) Address(m *Memory) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segment != nil {
		return s.segment.Address(), nil
	}

	arena, err := m.NewArena(m.gpu.Granularity)
	if err != nil {
		return 0, err
	}

	segment, err := arena.Map(0, m.gpu.Granularity)
	if err != nil {
		return 0, errors.Join(err, arena.Close())
	}

	s.arena, s.segment = arena, segment
	return segment.Address(), nil
}

// Close frees the buffer.
func (s *Scratch) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segment == nil {
		return nil
	}

	err := errors.Join(s.segment.Unmap(), s.arena.Close())
	s.segment, s.arena = nil, nil
	return err
}
