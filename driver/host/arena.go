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
	device    *Device
	addresses *sys.Mapping
}

func (a *arena) Address() uintptr { return a.addresses.Address() }

func (a *arena) Close() error { return a.device.abandoned.unmapWhenIdle(a.addresses.Close) }

// Keep releases no addresses with Config.Scatter, because segments may be anywhere in the range.
func (a *arena) Keep(bytes int64) error {
	if a.device.cfg.Scatter != 0 {
		return nil
	}
	return a.addresses.Shrink(bytes)
}

func (a *arena) Map(offset, bytes int64) (driver.Segment, error) {
	if bytes <= 0 || bytes%granularity != 0 || offset < 0 || offset%granularity != 0 {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: size and offset must be multiples "+
			"of %d", bytes, offset, granularity)
	}
	file, err := createSegmentFile(bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}
	var memory *sys.Mapping
	offset, err = a.device.scatter.Draw(a.addresses.Address(), a.addresses.Bytes(), offset, bytes)
	if err == nil {
		memory, err = a.addresses.MapAt(offset, file, bytes)
	}
	if err != nil {
		err = &driver.OutOfMemoryError{Requested: bytes, Cause: err}
		return nil, errors.Join(err, file.Close())
	}
	return &segment{device: a.device, file: file, memory: memory}, nil
}

// createSegmentFile creates a file in memory, of huge pages if possible, because these cause far
// fewer page faults. It rejects sizes above the machine's memory: the system would create such a
// file, and kill the process when it uses the memory.
func createSegmentFile(bytes int64) (*os.File, error) {
	if total, err := sys.Memory(); err != nil || bytes > total {
		return nil, errors.Join(err, fmt.Errorf("the machine has only %d bytes of memory", total))
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

// segment is a file in memory that is mapped in an arena.
type segment struct {
	device *Device
	file   *os.File // nil after Keep or Unmap; guarded by mu
	memory *sys.Mapping

	mu            ranked.Mutex[segmentMu] // guards the following fields
	exportedKeys  map[handoff.Key]bool    // keys under which peers can request the file
	isUnmapped    bool
	isSuspended   bool   // Suspend has discarded the pages
	savedContents []byte // contents for Resume to restore, or nil
}

func (s *segment) Address() uintptr { return s.memory.Address() }

func (s *segment) Bytes() int64 { return s.memory.Bytes() }

func (s *segment) exportFile(key handoff.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exportedKeys == nil {
		s.exportedKeys = map[handoff.Key]bool{}
	}
	s.exportedKeys[key] = true
	s.device.machine.Export(key, s.file)
}

// Keep withdraws and closes the file, so that peers can no longer request it. The mapping stays.
func (s *segment) Keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawFile()
	return s.closeFile()
}

func (s *segment) Unmap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawFile()
	if s.isUnmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}
	s.isUnmapped = true
	return errors.Join(s.device.abandoned.unmapWhenIdle(s.memory.Close), s.closeFile())
}

func (s *segment) withdrawFile() {
	for key := range s.exportedKeys {
		s.device.machine.Withdraw(key)
	}
	s.exportedKeys = nil
}

func (s *segment) closeFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}
