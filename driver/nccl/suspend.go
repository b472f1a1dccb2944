package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/control"
)

var (
	_ driver.SuspendableWindow       = (*window)(nil)
	_ driver.SuspendableCommunicator = (*communicator)(nil)
)

// PrepareSuspend returns ErrBusy if a graph contains NCCL's window kernels. They refer to data that
// NCCL would free together with the window's memory.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	// w.intraWindow needs no check, because it is never registered with NCCL.
	if w.handle != 0 && r.replaysWindows() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend deregisters the window with NCCL and unmaps the peers' segments. If the group has failed,
// the teardown does both.
func (w *window) Suspend() error {
	if w.intraWindow != nil {
		return errors.Join(w.intraWindow.Suspend(), w.suspend())
	}
	return w.suspend()
}

func (w *window) suspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.suspension.active || r.plane.Cause() != nil {
		return nil
	}
	w.suspension = windowSuspension{active: true, registerOnResume: w.handle != 0}
	return errors.Join(w.deregister(), w.undoMapping(len(r.cfg.Ranks)))
}

func (w *window) Resume(ctx context.Context) error {
	r := w.registrar
	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	err := w.resume(ctx)
	if err == nil && w.intraWindow != nil {
		if err = w.intraWindow.resume(ctx); err == nil {
			err = w.agreeOnIntraWindow(ctx)
		}
	}
	if err != nil {
		return r.plane.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}
	return nil
}

// resume takes the same steps as registrar.registerOnce.
func (w *window) resume(ctx context.Context) error {
	r := w.registrar
	shared, shareErr := r.share(w.key, w.segment)
	defer shared.Withdraw()
	allShared, err := control.CompareSegments(ctx, r.plane.Exchange, r.cfg.Ranks, w.key,
		w.segment.Bytes(), shared.Encode())
	if err != nil {
		return err
	}
	if w.suspension.registerOnResume {
		if err := r.registerWithNCCL(ctx, w); err != nil {
			return err
		}
	}
	wasMapped := w.mappedByAll
	err = cmp.Or(shareErr, w.mapAgain(ctx, allShared))
	w.mapped, w.mapError = err == nil, ""
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapError = err.Error()
	}
	if err := r.exchangeResults(ctx, w); err != nil {
		return err
	}
	if wasMapped && !w.mappedByAll {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}
	return nil
}

// mapAgain maps the peers' segments and ends the suspension. It holds the group's lock, so that the
// teardown cannot free the addresses meanwhile.
func (w *window) mapAgain(ctx context.Context, allShared [][]byte) error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.plane.Cause(); err != nil {
		return err
	}
	w.unmapped.Store(false)
	err := w.mapPeers(ctx, allShared)
	if err != nil && len(w.addresses) > 0 {
		err = errors.Join(err, w.unmapPeers())
	}
	w.suspension = windowSuspension{}
	return err
}
