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

// arena is a reserved range of addresses in which segments are mapped. A segment is a file in
// memory. For example, Map(2<<20, 4<<20) creates a file of 4 MiB, and maps it 2 MiB after the start
// of the arena. Peers can request the file, and map it, too.
type arena struct {
	device    *Device
	addresses *sys.Mapping // the reservation
}

// Address returns the first address of the arena.
func (a *arena) Address() uintptr { return a.addresses.Address() }

// Close releases the addresses. If closed streams are still running work, it leaves this to the end
// of the work, and returns nil.
func (a *arena) Close() error { return a.device.abandoned.unmapWhenIdle(a.addresses.Close) }

// Keep shrinks the arena to its first bytes. It does nothing if Config.Scatter is set, because
// segments can then be anywhere in the arena.
func (a *arena) Keep(bytes int64) error {
	if a.device.cfg.Scatter != 0 {
		return nil
	}

	return a.addresses.Shrink(bytes)
}

// Map creates a segment and maps it at an offset in the arena. In a mode for tests, Config.Scatter,
// it maps the segment at a random offset instead.
func (a *arena) Map(offset, bytes int64) (driver.Segment, error) {
	isSizeValid := bytes > 0 && bytes%granularity == 0
	isOffsetValid := offset >= 0 && offset%granularity == 0
	if !isSizeValid || !isOffsetValid {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: size and offset must be multiples "+
			"of %d", bytes, offset, granularity)
	}

	file, err := createSegmentFile(bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	memory, err := a.mapFile(file, offset, bytes)
	if err != nil {
		err = &driver.OutOfMemoryError{Requested: bytes, Cause: err}
		closeErr := file.Close()
		return nil, errors.Join(err, closeErr)
	}

	return &segment{device: a.device, file: file, memory: memory}, nil
}

// mapFile maps a segment's file at the offset, or at a random one if Config.Scatter is set.
func (a *arena) mapFile(file *os.File, offset, bytes int64) (*sys.Mapping, error) {
	space := a.addresses.Bytes()
	offset, err := a.device.scatter.Draw(a.addresses.Address(), space, offset, bytes)
	if err != nil {
		return nil, err
	}

	return a.addresses.MapAt(offset, file, bytes)
}

// createSegmentFile creates a segment's file. It uses huge pages if possible, because these cause
// far fewer page faults. It rejects sizes above the machine's memory: the system would create such
// a file, but kill the process when it uses the memory.
func createSegmentFile(bytes int64) (*os.File, error) {
	total, err := sys.Memory()
	if err != nil {
		return nil, err
	}

	if bytes > total {
		return nil, fmt.Errorf("the machine has only %d bytes of memory", total)
	}

	if f, err := sys.HugeMemfd("symmem-segment", bytes); err == nil {
		return f, nil // its size is not sealed, because older kernels cannot seal huge pages
	}

	f, err := sys.Memfd("symmem-segment", bytes)
	if err != nil {
		return nil, err
	}

	if err := sys.SealSize(f); err != nil {
		closeErr := f.Close()
		return nil, errors.Join(err, closeErr)
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
	isUnmapped    bool                    // Unmap has been called
	isSuspended   bool                    // Suspend has discarded the pages
	savedContents []byte                  // contents for Resume to restore, or nil
}

// Address returns the first address of the segment.
func (s *segment) Address() uintptr { return s.memory.Address() }

// Bytes returns the size of the segment.
func (s *segment) Bytes() int64 { return s.memory.Bytes() }

// exportFile allows peers to request the file under a key, until Keep or Unmap.
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

// Unmap withdraws and closes the file, and unmaps the memory. If closed streams are still running
// work, the memory stays mapped until the end of the work.
func (s *segment) Unmap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawFile()
	if s.isUnmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}

	s.isUnmapped = true
	unmapErr := s.device.abandoned.unmapWhenIdle(s.memory.Close)
	closeErr := s.closeFile()
	return errors.Join(unmapErr, closeErr)
}

// withdrawFile ends exports of the file. The caller must hold s.mu.
func (s *segment) withdrawFile() {
	for key := range s.exportedKeys {
		s.device.machine.Withdraw(key)
	}

	s.exportedKeys = nil
}

// closeFile closes the file unless it is already closed. The caller must hold s.mu.
func (s *segment) closeFile() error {
	if s.file == nil {
		return nil
	}

	err := s.file.Close()
	s.file = nil
	return err
}
