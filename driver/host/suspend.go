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

// PrepareSuspend checks that the memory can be released, and copies its contents if save is set.
// It returns ErrBusy if a closed stream of the device is still running work.
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

// Suspend frees the segment's pages, even if peers have mapped them.
func (s *segment) Suspend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSuspendable(); err != nil {
		return err
	}
	if err := s.memory.Protect(false); err != nil {
		return err
	}
	s.isSuspended = true
	return sys.Discard(s.file, 0, s.Bytes())
}

func (s *segment) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}
	if s.isSuspended {
		if err := sys.Refill(s.file, s.Bytes()); err != nil {
			return &driver.OutOfMemoryError{Requested: s.Bytes(), Cause: err}
		}
		if err := s.memory.Protect(true); err != nil {
			return errors.Join(err, sys.Discard(s.file, 0, s.Bytes()))
		}
		copy(s.contents(), s.savedContents)
	}
	s.isSuspended, s.savedContents = false, nil
	return nil
}

// checkSuspendable requires that the caller holds s.mu.
func (s *segment) checkSuspendable() error {
	switch {
	case s.isUnmapped || s.file == nil: // Keep has closed the file
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.isSuspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}
	return nil
}

func (s *segment) contents() []byte {
	return unsafe.Slice((*byte)(s.memory.Base()), s.Bytes())
}

func (w *window) PrepareSuspend() error { return nil }

func (w *window) Suspend() error { return w.setAccess(false) }

func (w *window) Resume(ctx context.Context) error {
	registry := w.registry
	if err := registry.group.BeginUse(); err != nil {
		return fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err)
	}
	defer registry.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, registry.cfg.Timeout.Get())
	defer cancel()
	accessErr := w.setAccess(true)
	if err := registry.agreeOnMapping(ctx, "resuming a pool", accessErr); err != nil {
		return registry.group.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}
	return nil
}

func (w *window) setAccess(allow bool) error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	var errs []error
	for _, m := range w.peerMappings {
		if m != nil {
			errs = append(errs, m.Protect(allow))
		}
	}
	return errors.Join(errs...)
}
