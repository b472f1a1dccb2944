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

// PrepareSuspend returns ErrBusy if the window is registered with NCCL and a graph contains window
// kernels, which use data that NCCL frees at deregistration.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.handle != 0 && r.hasWindowGraphs() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

// Suspend deregisters the window from NCCL and unmaps the peers' segments.
func (w *window) Suspend() error {
	if w.machineWindow == nil {
		return w.suspendSelf()
	}

	machineErr := w.machineWindow.suspendSelf()
	selfErr := w.suspendSelf()
	return errors.Join(machineErr, selfErr)
}

// suspendSelf is Suspend without the machineWindow. It does nothing in a failed group, whose
// teardown frees the window.
func (w *window) suspendSelf() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.suspension.isActive || r.plane.Cause() != nil {
		return nil
	}

	w.suspension = windowSuspension{isActive: true, mustRegister: w.handle != 0}
	deregisterErr := w.deregisterFromNCCL()
	unmapErr := w.unmapKeepingAddresses(len(r.cfg.Ranks))
	return errors.Join(deregisterErr, unmapErr)
}

// Resume undoes Suspend. All ranks must call it. An error makes the group fail.
func (w *window) Resume(ctx context.Context) error {
	r := w.registrar
	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	if err := w.resumeBoth(ctx); err != nil {
		return r.plane.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}

func (w *window) resumeBoth(ctx context.Context) error {
	if err := w.resumeSelf(ctx); err != nil {
		return err
	}

	if w.machineWindow == nil {
		return nil
	}

	if err := w.machineWindow.resumeSelf(ctx); err != nil {
		return err
	}

	return w.agreeOnMachineWindow(ctx)
}

// resumeSelf is Resume without the machineWindow. It fails if all ranks had mapped the window, but
// some rank cannot map it again.
func (w *window) resumeSelf(ctx context.Context) error {
	r := w.registrar
	shared, shareErr := r.share(w.key, w.segment)
	defer shared.Withdraw()
	segments, err := control.CompareSegments(ctx, r.plane.Exchange, r.cfg.Ranks, w.key,
		w.segment.Bytes(), shared.Encode())
	if err != nil {
		return err
	}

	if w.suspension.mustRegister {
		if err := r.registerWithNCCL(ctx, w); err != nil {
			return err
		}
	}

	mapErr := w.endSuspension(ctx, segments)
	w.noteMapResult(cmp.Or(shareErr, mapErr))
	wasMappedEverywhere := w.isMappedEverywhere
	if err := r.exchangeResults(ctx, w); err != nil {
		return err
	}

	// exchangeResults has updated isMappedEverywhere.
	if wasMappedEverywhere && !w.isMappedEverywhere {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}

	return nil
}

// endSuspension maps the segments of other ranks at their old addresses. It ends the suspension
// even after an error. In a failed group, it only returns the cause.
func (w *window) endSuspension(ctx context.Context, segments [][]byte) error {
	r := w.registrar
	r.mu.Lock() // so that the teardown does not free the addresses meanwhile
	defer r.mu.Unlock()
	if cause := r.plane.Cause(); cause != nil {
		return cause
	}

	w.isUnmapped.Store(false)
	err := w.mapPeers(ctx, segments)
	if err != nil && len(w.addresses) > 0 {
		unmapErr := w.unmapPeers() // frees the reserved addresses
		err = errors.Join(err, unmapErr)
	}

	w.suspension = windowSuspension{}
	return err
}
