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

// arena is a reserved address range. Map backs parts of it with segments.
type arena struct {
	device    *Device
	addresses *sys.Mapping
}

func (a *arena) Address() uintptr { return a.addresses.Address() }

// Close releases the addresses as soon as closed streams have finished their work.
func (a *arena) Close() error { return a.device.abandoned.unmapWhenIdle(a.addresses.Close) }

// Keep shrinks the arena to the given size, unless Config.Scatter puts segments at random offsets.
func (a *arena) Keep(bytes int64) error {
	if a.device.cfg.Scatter != 0 {
		return nil
	}

	return a.addresses.Shrink(bytes)
}

// Map creates a segment and maps it at the offset, or at a random one if Config.Scatter is set.
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

	memory, err := a.mapAtOrScattered(offset, file, bytes)
	if err != nil {
		err = &driver.OutOfMemoryError{Requested: bytes, Cause: err}
		closeErr := file.Close()
		return nil, errors.Join(err, closeErr)
	}

	return &segment{device: a.device, file: file, memory: memory}, nil
}

func (a *arena) mapAtOrScattered(offset int64, file *os.File, bytes int64) (*sys.Mapping, error) {
	arenaBytes := a.addresses.Bytes()
	chosenOffset, err := a.device.scatter.Draw(a.Address(), arenaBytes, offset, bytes)
	if err != nil {
		return nil, err
	}

	return a.addresses.MapAt(chosenOffset, file, bytes)
}

// createSegmentFile prefers huge pages, which cause far fewer page faults. If the file exceeded the
// machine's memory, the kernel would kill the process that fills it.
func createSegmentFile(bytes int64) (*os.File, error) {
	total, err := sys.Memory()
	if err != nil {
		return nil, err
	}

	if bytes > total {
		return nil, fmt.Errorf("the machine has only %d bytes of memory", total)
	}

	if f, err := sys.HugeMemfd("symmem-segment", bytes); err == nil {
		return f, nil // not sealed, because older kernels cannot seal huge pages
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

// segment maps a memory file that peers can map, too.
type segment struct {
	device *Device
	memory *sys.Mapping

	mu            ranked.Mutex[segmentMu] // guards the following fields
	file          *os.File                // nil after Keep or Unmap
	exportedKeys  map[handoff.Key]bool    // keys under which peers can request the file
	isUnmapped    bool
	isSuspended   bool
	savedContents []byte // for Resume to restore, or nil
}

func (s *segment) Address() uintptr { return s.memory.Address() }

func (s *segment) Bytes() int64 { return s.memory.Bytes() }

// exportFile lets peers request the file under the given key until Keep or Unmap.
func (s *segment) exportFile(key handoff.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exportedKeys == nil {
		s.exportedKeys = map[handoff.Key]bool{}
	}

	s.exportedKeys[key] = true
	s.device.machine.Export(key, s.file)
}

// Keep closes the file, so that peers can no longer request it, but keeps the mapping.
func (s *segment) Keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawFile()
	return s.closeFile()
}

// Unmap closes the file and unmaps the memory. If closed streams are still running work, the memory
// stays mapped until they finish.
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

// The caller must hold s.mu.
func (s *segment) withdrawFile() {
	for key := range s.exportedKeys {
		s.device.machine.Withdraw(key)
	}

	s.exportedKeys = nil
}

// closeFile does nothing if the file is closed. The caller must hold s.mu.
func (s *segment) closeFile() error {
	if s.file == nil {
		return nil
	}

	err := s.file.Close()
	s.file = nil
	return err
}
