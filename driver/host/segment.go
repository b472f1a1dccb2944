package host

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

var _ driver.SuspendableSegment = (*segment)(nil)

// segment maps an anonymous file, which peers can map, too.
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

// createSegmentFile creates a file, if possible of huge pages, which cause far fewer page faults.
func createSegmentFile(bytes int64) (*os.File, error) {
	total, err := sys.Memory()
	if err != nil {
		return nil, err
	}

	if bytes > total { // the kernel would kill a process that writes to all pages
		return nil, fmt.Errorf("the machine has only %d bytes of memory", total)
	}

	if f, err := sys.HugeMemfd("symmem-segment", bytes); err == nil {
		return f, nil // not sealed, because older kernels cannot seal the size of huge pages
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

// Unmap closes the file. When all abandoned work has ended, it unmaps the memory.
func (s *segment) Unmap() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withdrawFile()
	if s.isUnmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}

	s.isUnmapped = true
	unmapErr := s.device.abandonedWork.unmapAfterWork(s.memory.Close)
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

// PrepareSuspend saves the contents for Resume if save is set. It returns ErrBusy while abandoned
// work could access the memory.
func (s *segment) PrepareSuspend(save bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}

	if s.device.abandonedWork.isRunning() {
		return fmt.Errorf("a closed stream is still running work: %w", driver.ErrBusy)
	}

	s.savedContents = nil
	if save {
		s.savedContents = append([]byte(nil), s.contents()...)
	}

	return nil
}

// Suspend frees the segment's pages, even if peers have mapped them. The addresses are inaccessible
// until Resume.
func (s *segment) Suspend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}

	const allowAccess = false
	if err := s.memory.Protect(allowAccess); err != nil {
		return err
	}

	s.isSuspended = true // even if discardPages fails, because Resume must undo Protect
	return s.discardPages()
}

// The caller must hold s.mu.
func (s *segment) checkSuspendable() error {
	switch {
	case s.file == nil:
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.isSuspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}

	return nil
}

// Resume allocates new pages and restores the saved contents. If Suspend was not called, it only
// drops the saved contents.
func (s *segment) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}

	if s.isSuspended {
		if err := s.restore(); err != nil {
			return err
		}
	}

	s.isSuspended = false
	s.savedContents = nil
	return nil
}

// restore allocates pages and fills them with the saved contents or zeros. The caller must hold
// s.mu.
func (s *segment) restore() error {
	if err := sys.Refill(s.file, s.Bytes()); err != nil {
		return &driver.OutOfMemoryError{Requested: s.Bytes(), Cause: err}
	}

	const allowAccess = true
	if err := s.memory.Protect(allowAccess); err != nil {
		discardErr := s.discardPages()
		return errors.Join(err, discardErr)
	}

	copy(s.contents(), s.savedContents)
	return nil
}

// The caller must hold s.mu.
func (s *segment) discardPages() error {
	const offset = 0
	return sys.Discard(s.file, offset, s.Bytes())
}

func (s *segment) contents() []byte {
	return unsafe.Slice((*byte)(s.memory.Base()), s.Bytes())
}
