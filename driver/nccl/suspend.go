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

// Suspending memory releases it for a while. A window is suspended in two steps, PrepareSuspend and
// Suspend, and Resume undoes them.

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
	if w.machineWindow == nil {
		return w.suspendSelf()
	}

	machineErr := w.machineWindow.Suspend()
	selfErr := w.suspendSelf()
	return errors.Join(machineErr, selfErr)
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
	deregisterErr := w.deregisterFromNCCL()
	unmapErr := w.unmapKeepingAddresses(len(r.cfg.Ranks))
	return errors.Join(deregisterErr, unmapErr)
}

// Resume undoes Suspend, together with the other ranks. An error makes the group fail.
func (w *window) Resume(ctx context.Context) error {
	r := w.registrar
	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	if err := w.resumeBoth(ctx); err != nil {
		return r.plane.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}

// resumeBoth resumes w, and the machineWindow if there is one.
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

// resumeSelf registers w again if Suspend has deregistered it, and maps the segments of other
// ranks at their old addresses. It returns an error if all ranks had mapped the segments before
// Suspend, and some rank cannot map them again. It must follow the steps of
// registrar.registerOnce.
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

	wasMappedEverywhere := w.isMappedEverywhere
	mapErr := w.mapAgain(ctx, sharedSegments) // even after shareErr, because it ends the suspension
	err = cmp.Or(shareErr, mapErr)            // the first error
	w.isMappedHere = err == nil
	w.mapErrorText = ""
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapErrorText = err.Error()
	}

	if err := r.exchangeResults(ctx, w); err != nil {
		return err
	}

	if wasMappedEverywhere && !w.isMappedEverywhere {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}

	return nil
}

// mapAgain maps the segments of other ranks at their old addresses. It ends the suspension, even if
// a segment cannot be mapped. If the group has failed, it only returns the cause. It holds the
// group's lock, so that the teardown does not free the addresses meanwhile.
func (w *window) mapAgain(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause := r.plane.Cause(); cause != nil {
		return cause
	}

	w.isUnmapped.Store(false)
	err := w.mapPeers(ctx, sharedSegments)
	if err != nil && len(w.addresses) > 0 {
		unmapErr := w.unmapPeers()
		err = errors.Join(err, unmapErr)
	}

	w.suspension = windowSuspension{}
	return err
}
