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

// PrepareSuspend saves the contents for Resume if save is set. It returns ErrBusy if a closed
// stream, whose work could access the memory, is still running.
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

// Resume allocates new pages and restores the saved contents. If the segment is not suspended, it
// only drops them.
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

		const allowAccess = true
		if err := s.memory.Protect(allowAccess); err != nil {
			discardErr := s.discardPages()
			return errors.Join(err, discardErr)
		}

		copy(s.contents(), s.savedContents) // without saved contents, the memory is zero
	}

	s.isSuspended = false
	s.savedContents = nil
	return nil
}

func (s *segment) discardPages() error {
	const offset = 0
	return sys.Discard(s.file, offset, s.Bytes())
}

// The caller must hold s.mu.
func (s *segment) checkSuspendable() error {
	isFileClosed := s.file == nil // by Keep
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

// PrepareSuspend does nothing, because a window has no memory to save: it maps the peers' segments.
func (w *window) PrepareSuspend() error { return nil }

// Suspend makes accesses to the peers' segments fail.
func (w *window) Suspend() error {
	const allow = false
	return w.setAccess(allow)
}

// Resume makes the peers' segments accessible again. All ranks call it together, and if it fails on
// one of them, the group fails.
func (w *window) Resume(ctx context.Context) error {
	registry := w.registry
	if err := registry.group.BeginUse(); err != nil {
		return fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err)
	}

	defer registry.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, registry.cfg.Timeout.Get())
	defer cancel()
	const allow = true
	accessErr := w.setAccess(allow)
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
