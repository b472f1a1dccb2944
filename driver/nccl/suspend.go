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

// PrepareSuspend returns ErrBusy if a graph contains window kernels (NCCL kernels that access
// registered memory). They use data that NCCL frees when a window is deregistered.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	// w.machineWindow is never registered with NCCL.
	if w.handle != 0 && r.hasWindowGraphs() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend deregisters the window and unmaps the segments of other ranks. If the group has failed,
// the teardown does this instead.
func (w *window) Suspend() error {
	if w.machineWindow != nil {
		return errors.Join(w.machineWindow.Suspend(), w.suspendSelf())
	}
	return w.suspendSelf()
}

func (w *window) suspendSelf() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.suspension.isActive || r.plane.Cause() != nil {
		return nil
	}
	w.suspension = windowSuspension{isActive: true, mustRegister: w.handle != 0}
	return errors.Join(w.deregister(), w.unmapFirstPeers(len(r.cfg.Ranks)))
}

func (w *window) Resume(ctx context.Context) error {
	r := w.registrar
	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	err := w.resumeSelf(ctx)
	if err == nil && w.machineWindow != nil {
		if err = w.machineWindow.resumeSelf(ctx); err == nil {
			err = w.agreeOnMachineWindow(ctx)
		}
	}
	if err != nil {
		return r.plane.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}
	return nil
}

// resumeSelf must follow the steps of registrar.registerOnce.
func (w *window) resumeSelf(ctx context.Context) error {
	r := w.registrar
	shared, shareErr := r.share(w.key, w.segment)
	defer shared.Withdraw()
	sharedSegments, err := control.CompareSegments(ctx, r.plane.Exchange, r.cfg.Ranks, w.key,
		w.segment.Bytes(), shared.Encode())
	if err != nil {
		return err
	}
	if w.suspension.mustRegister {
		if err := r.registerWithNCCL(ctx, w); err != nil {
			return err
		}
	}
	wasMappedByAll := w.isMappedByAll
	err = cmp.Or(shareErr, w.mapAgain(ctx, sharedSegments))
	w.hasMappedAll, w.mapError = err == nil, ""
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapError = err.Error()
	}
	if err := r.exchangeResults(ctx, w); err != nil {
		return err
	}
	if wasMappedByAll && !w.isMappedByAll {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}
	return nil
}

// mapAgain holds the group's lock, so that the teardown does not free the addresses.
func (w *window) mapAgain(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.plane.Cause(); err != nil {
		return err
	}
	w.isUnmapped.Store(false)
	err := w.mapPeers(ctx, sharedSegments)
	if err != nil && len(w.addresses) > 0 {
		err = errors.Join(err, w.unmapPeers())
	}
	w.suspension = windowSuspension{}
	return err
}
