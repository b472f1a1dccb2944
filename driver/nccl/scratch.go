package nccl

import (
	"errors"

	"symmem/driver"
	"symmem/internal/ranked"
)

// scratch is a little memory of a device that barriers add up. What is in it never matters.
type scratch struct {
	mu      ranked.Mutex[scratchMu]
	arena   driver.Arena   // guarded by mu
	segment driver.Segment // guarded by mu
}

// address returns the memory, which is made at the first use.
func (s *scratch) address(d *Device) (uintptr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segment != nil {
		return s.segment.Address(), nil
	}
	arena, err := d.NewArena(d.info.Granularity)
	if err != nil {
		return 0, err
	}
	segment, err := arena.Map(0, d.info.Granularity)
	if err != nil {
		return 0, errors.Join(err, arena.Close())
	}
	s.arena, s.segment = arena, segment
	return segment.Address(), nil
}

func (s *scratch) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segment == nil {
		return nil
	}
	err := errors.Join(s.segment.Unmap(), s.arena.Close())
	s.segment, s.arena = nil, nil
	return err
}
