package host

import (
	"errors"
	"fmt"
	"os"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

type arena struct {
	device *Device
	space  *sys.Mapping
}

// Address returns the arena's first address.
func (a *arena) Address() uintptr { return a.space.Address() }

// Close releases the addresses.
func (a *arena) Close() error { return a.device.abandoned.unmap(a.space.Close) }

// Keep releases all addresses after the first bytes. With Config.Scatter it releases none, because
// segments may be anywhere in the range.
func (a *arena) Keep(bytes int64) error {
	if a.device.cfg.Scatter != 0 {
		return nil
	}
	return a.space.Shrink(bytes)
}

// Map maps a new segment.
func (a *arena) Map(offset, bytes int64) (driver.Segment, error) {
	if bytes <= 0 || bytes%granularity != 0 || offset < 0 || offset%granularity != 0 {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: size and offset must be multiples "+
			"of %d", bytes, offset, granularity)
	}
	file, err := segmentFile(bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}
	var memory *sys.Mapping
	offset, err = a.device.scatter.Draw(a.space.Address(), a.space.Bytes(), offset, bytes)
	if err == nil {
		memory, err = a.space.MapAt(offset, file, bytes)
	}
	if err != nil {
		err = &driver.OutOfMemoryError{Requested: bytes, Cause: err}
		return nil, errors.Join(err, file.Close())
	}
	return &segment{device: a.device, file: file, memory: memory}, nil
}

// segmentFile creates a segment's memory, of huge pages if possible: touching 64 MiB then causes 32
// page faults instead of 16,384.
//
// It rejects sizes above the machine's memory, because the system would accept them for a sparse
// file and kill the process later.
func segmentFile(bytes int64) (*os.File, error) {
	if total, err := sys.Memory(); err != nil || bytes > total {
		return nil, errors.Join(err, fmt.Errorf("the machine has only %d bytes", total))
	}
	if f, err := sys.HugeMemfd("symmem-segment", bytes); err == nil {
		return f, nil
	}
	f, err := sys.Memfd("symmem-segment", bytes)
	if err != nil {
		return nil, err
	}
	if err := sys.SealSize(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

type segment struct {
	device *Device
	file   *os.File
	memory *sys.Mapping

	mu        ranked.Mutex[segmentMu]
	exported  map[handoff.Key]bool // guarded by mu
	unmapped  bool                 // guarded by mu
	suspended bool                 // whether Suspend has discarded the pages; guarded by mu
	saved     []byte               // contents that Resume restores, or nil; guarded by mu
}

// Address returns the address of the mapping.
func (s *segment) Address() uintptr { return s.memory.Address() }

// Bytes returns the size of the segment.
func (s *segment) Bytes() int64 { return s.memory.Bytes() }

func (s *segment) export(key handoff.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exported == nil {
		s.exported = map[handoff.Key]bool{}
	}
	s.exported[key] = true
	s.device.machine.Export(key, s.file)
}

// Keep withdraws the segment's file from peers and closes it. The memory stays mapped.
func (s *segment) Keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdraw()
	return s.closeFile()
}

// Unmap releases the memory.
func (s *segment) Unmap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdraw()
	if s.unmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}
	s.unmapped = true
	return errors.Join(s.device.abandoned.unmap(s.memory.Close), s.closeFile())
}

func (s *segment) withdraw() {
	for key := range s.exported {
		s.device.machine.Withdraw(key)
	}
	s.exported = nil
}

func (s *segment) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
