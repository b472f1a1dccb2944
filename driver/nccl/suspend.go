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

// PrepareSuspend checks whether the window can be suspended. It returns ErrBusy if the window is
// registered with NCCL and a graph contains window kernels (NCCL kernels that access registered
// memory). These kernels use data that NCCL frees when a window is deregistered.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	// w.machineWindow needs no check, because it is never registered with NCCL.
	if w.handle != 0 && r.hasWindowGraphs() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend deregisters the window, and the machineWindow if there is one, and unmaps the segments
// of other ranks. Their addresses stay reserved.
func (w *window) Suspend() error {
	if w.machineWindow != nil {
		return errors.Join(w.machineWindow.Suspend(), w.suspendSelf())
	}
	return w.suspendSelf()
}

// suspendSelf suspends w without its machineWindow. If the group has failed, the teardown
// deregisters and unmaps instead.
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

// resumeSelf registers w again if Suspend has deregistered it, and maps the segments of other
// ranks at their old addresses. It returns an error if a segment that was mapped cannot be mapped
// again. It must follow the steps of registrar.registerOnce.
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
	mapErr := w.mapAgain(ctx, sharedSegments) // even after shareErr, because it ends the suspension
	err = cmp.Or(shareErr, mapErr)
	w.hasMappedAll = err == nil
	w.mapError = ""
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

// mapAgain maps the segments of other ranks at their old addresses and ends the suspension. It
// holds the group's lock, so that the teardown does not free the addresses meanwhile.
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
