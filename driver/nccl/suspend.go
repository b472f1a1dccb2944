package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/control"
)

// A window consists of a segment of GPU memory on each rank. A rank maps the segments of its peers,
// and may register the window with NCCL. Suspend unmaps and deregisters the window, so that the
// segments can be freed. Their addresses stay reserved until Resume.
//
// In a group on several machines, a window can have a machineWindow, which is a second window for
// the segments on this machine. Both windows are suspended and resumed together.

var (
	_ driver.SuspendableWindow       = (*window)(nil)
	_ driver.SuspendableCommunicator = (*communicator)(nil)
)

// PrepareSuspend returns ErrBusy if the window cannot be suspended. NCCL kernels in a CUDA graph
// that access windows use data that NCCL frees at deregistration.
func (w *window) PrepareSuspend() error {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	isRegistered := w.handle != 0 // with NCCL
	if isRegistered && r.hasWindowGraphs() {
		return fmt.Errorf("a graph contains calls of group %s on the window path, which NCCL cannot "+
			"suspend: close the graph, or capture on another path (Group.SetPath): %w", r.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

func (w *window) Suspend() error {
	if w.machineWindow == nil {
		return w.suspendSelf()
	}

	machineErr := w.machineWindow.Suspend()
	selfErr := w.suspendSelf()
	return errors.Join(machineErr, selfErr)
}

// suspendSelf suspends w without its machineWindow, unless the group has failed and frees w.
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

// resumeSelf resumes w without its machineWindow. It shares this rank's segment, registers the
// window and maps the segments of the peers. It fails if a window that all ranks had mapped is not
// mapped on all ranks again.
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

	mapErr := w.mapAgain(ctx, sharedSegments) // even after shareErr, to end the suspension
	w.noteMapResult(cmp.Or(shareErr, mapErr))
	wasMappedEverywhere := w.isMappedEverywhere
	if err := r.exchangeResults(ctx, w); err != nil { // updates isMappedEverywhere
		return err
	}

	if wasMappedEverywhere && !w.isMappedEverywhere {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}

	return nil
}

// mapAgain ends the suspension, and maps the segments of other ranks at their old addresses. In a
// failed group, it does neither and returns the cause.
func (w *window) mapAgain(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	r.mu.Lock() // the teardown of a failed group needs this lock to free the addresses
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

// noteMapResult stores whether this rank has mapped the segments of the other ranks.
func (w *window) noteMapResult(err error) {
	w.isMappedHere = err == nil
	w.mapErrorText = ""
	isErrorOfThisRank := err != nil && !errors.Is(err, errNotShared)
	if isErrorOfThisRank {
		w.mapErrorText = err.Error()
	}
}
