package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/control"
)

// A window consists of a segment of GPU memory on each rank. For example, rank 0 has a segment at
// 0x1000, and has mapped the segment of rank 1 at 0x5000. Some windows are also registered with
// NCCL. Then NCCL has kernels that access them, called window kernels.
//
// Suspending a window ends all this for a while, so that the segments can be freed:
//
//   - PrepareSuspend checks whether it is possible.
//   - Suspend deregisters the window from NCCL, and unmaps the segment of rank 1. The address
//     0x5000 stays reserved.
//   - Resume maps the segment of rank 1 at 0x5000 again, and registers the window again.
//
// In a group on several machines, a window can have a machineWindow. This is a second window, with
// only the segments of this machine. It is suspended and resumed with the window.

var (
	_ driver.SuspendableWindow       = (*window)(nil)
	_ driver.SuspendableCommunicator = (*communicator)(nil)
)

// PrepareSuspend checks whether the window can be suspended. It returns ErrBusy if the window is
// registered with NCCL and a CUDA graph contains window kernels. These kernels use data that NCCL
// frees when a window is deregistered.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	isRegistered := w.handle != 0 // the machineWindow never is
	if isRegistered && r.hasWindowGraphs() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

// Suspend suspends the window, and the machineWindow if there is one.
func (w *window) Suspend() error {
	if w.machineWindow == nil {
		return w.suspendSelf()
	}

	machineErr := w.machineWindow.Suspend()
	selfErr := w.suspendSelf()
	return errors.Join(machineErr, selfErr)
}

// suspendSelf suspends w without its machineWindow. It does nothing if the group has failed,
// because the group then frees its windows.
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

// resumeSelf resumes w without its machineWindow. It returns an error if all ranks had mapped the
// segments before Suspend, and some rank cannot map them again. All ranks call it together. Like
// registrar.registerOnce, it shares this rank's segment, then registers the window, and then maps
// the other segments.
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
	w.noteMapResult(cmp.Or(shareErr, mapErr))
	if err := r.exchangeResults(ctx, w); err != nil { // sets isMappedEverywhere
		return err
	}

	if wasMappedEverywhere && !w.isMappedEverywhere {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}

	return nil
}

// mapAgain maps the segments of other ranks at their old addresses. It ends the suspension, even if
// a segment cannot be mapped. If the group has failed, it only returns the cause.
func (w *window) mapAgain(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	// While the lock is held, a group that fails cannot free the addresses.
	r.mu.Lock()
	defer r.mu.Unlock()
	if cause := r.plane.Cause(); cause != nil {
		return cause
	}

	w.isUnmapped.Store(false)
	err := w.mapPeers(ctx, sharedSegments)
	hasAddresses := len(w.addresses) > 0
	if err != nil && hasAddresses {
		unmapErr := w.unmapPeers()
		err = errors.Join(err, unmapErr)
	}

	w.suspension = windowSuspension{}
	return err
}

// noteMapResult notes whether this rank has mapped the segments of the other ranks. err explains
// why not, or is nil.
func (w *window) noteMapResult(err error) {
	w.isMappedHere = err == nil
	w.mapErrorText = ""
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapErrorText = err.Error()
	}
}
