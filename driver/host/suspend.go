package host

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/sys"
)

var (
	_ driver.SuspendableSegment = (*segment)(nil)
	_ driver.SuspendableWindow  = (*window)(nil)
)

// PrepareSuspend saves the contents for Resume if save is set. It returns ErrBusy while closed
// streams run work that could access the memory.
func (s *segment) PrepareSuspend(save bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}

	if s.device.abandoned.isRunning() {
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

	s.isSuspended = true // even if Discard fails, so that Resume undoes Protect
	return s.discardPages()
}

// Resume allocates new pages and restores the saved contents. If the segment is not suspended,
// Resume only drops the saved contents.
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

// restore leaves the memory zero if no contents were saved. The caller must hold s.mu.
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

func (s *segment) discardPages() error {
	const offset = 0
	return sys.Discard(s.file, offset, s.Bytes())
}

// The caller must hold s.mu.
func (s *segment) checkSuspendable() error {
	isFileClosed := s.file == nil // by Keep, which does not unmap the segment
	switch {
	case s.isUnmapped || isFileClosed:
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.isSuspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}

	return nil
}

func (s *segment) contents() []byte {
	return unsafe.Slice((*byte)(s.memory.Base()), s.Bytes())
}

// PrepareSuspend does nothing: the peers save the segments that a window maps.
func (w *window) PrepareSuspend() error { return nil }

// Suspend makes accesses to the peers' segments fail.
func (w *window) Suspend() error {
	const allowAccess = false
	return w.protectPeers(allowAccess)
}

// Resume makes the peers' segments accessible again. All ranks call it together. An error on one of
// them makes the group fail.
func (w *window) Resume(ctx context.Context) error {
	registry := w.registry
	if err := registry.group.BeginUse(); err != nil {
		return fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err)
	}

	defer registry.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, registry.cfg.Timeout.Get())
	defer cancel()
	const allowAccess = true
	accessErr := w.protectPeers(allowAccess)
	if err := registry.agreeOnMapping(ctx, "resuming a pool", accessErr); err != nil {
		return registry.group.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}

func (w *window) protectPeers(allowAccess bool) error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	var errs []error
	for _, m := range w.peerMappings {
		if m != nil {
			errs = append(errs, m.Protect(allowAccess))
		}
	}

	return errors.Join(errs...)
}
