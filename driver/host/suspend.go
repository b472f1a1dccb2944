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

// PrepareSuspend returns ErrBusy if abandoned work is running.
func (s *segment) PrepareSuspend(save bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkMapped(); err != nil {
		return err
	}
	if s.device.abandoned.any() {
		return fmt.Errorf("a closed stream still runs work: %w", driver.ErrBusy)
	}
	s.saved = nil
	if save {
		s.saved = append([]byte(nil), s.contents()...)
	}
	return nil
}

// Suspend frees the pages of the file, also for peers that map it, and prevents access.
func (s *segment) Suspend() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkMapped(); err != nil {
		return err
	}
	if err := s.memory.Protect(false); err != nil {
		return err
	}
	s.suspended = true
	return sys.Discard(s.file, 0, s.Bytes())
}

// Resume permits access to the mapping again and restores the saved contents.
func (s *segment) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped {
		return fmt.Errorf("resuming a segment: %w", driver.ErrClosed)
	}
	saved := s.saved
	if s.suspended {
		if err := sys.Refill(s.file, s.Bytes()); err != nil {
			return &driver.OutOfMemoryError{Requested: s.Bytes(), Cause: err}
		}
		if err := s.memory.Protect(true); err != nil {
			return errors.Join(err, sys.Discard(s.file, 0, s.Bytes()))
		}
		copy(s.contents(), saved)
	}
	s.suspended, s.saved = false, nil
	return nil
}

// checkMapped requires that the caller holds s.mu.
func (s *segment) checkMapped() error {
	switch {
	case s.unmapped || s.file == nil:
		return fmt.Errorf("suspending a segment: %w", driver.ErrClosed)
	case s.suspended:
		return fmt.Errorf("suspending a segment: %w", driver.ErrSuspended)
	}
	return nil
}

func (s *segment) contents() []byte {
	return unsafe.Slice((*byte)(s.memory.Base()), s.Bytes())
}

// PrepareSuspend returns nil.
func (w *window) PrepareSuspend() error { return nil }

// Suspend prevents access to the peers' segments.
func (w *window) Suspend() error { return w.protect(false) }

// Resume permits access to the peers' segments once all ranks have resumed their own segments.
func (w *window) Resume(ctx context.Context) error {
	reg := w.registry
	if err := reg.group.BeginUse(); err != nil {
		return fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err)
	}
	defer reg.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, reg.cfg.Timeout.Get())
	defer cancel()
	if err := reg.commit(ctx, "resuming a pool", w.protect(true)); err != nil {
		return reg.group.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}
	return nil
}

func (w *window) protect(access bool) error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	var errs []error
	for _, m := range w.foreign {
		if m != nil {
			errs = append(errs, m.Protect(access))
		}
	}
	return errors.Join(errs...)
}
