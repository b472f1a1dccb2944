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
// and may register the window with NCCL. While a window is suspended, it is unmapped and
// deregistered, so that its segments can be freed, but the addresses stay reserved for Resume.
//
// In a group on several machines, a window can have a machineWindow, a second window over the
// segments of this machine. The two are suspended and resumed together.

var (
	_ driver.SuspendableWindow       = (*window)(nil)
	_ driver.SuspendableCommunicator = (*communicator)(nil)
)

// PrepareSuspend checks whether the window can be suspended. It returns ErrBusy if NCCL kernels in
// a CUDA graph access windows, because they use data that NCCL frees at deregistration.
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

// suspendSelf suspends w without its machineWindow. It does nothing in a failed group, which frees
// its windows.
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

// Resume undoes Suspend. It is collective. An error makes the group fail.
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

// resumeSelf resumes w without its machineWindow. Like registrar.registerOnce, it is collective: it
// shares this rank's segment, registers the window and maps the segments of the peers. A window
// that all ranks had mapped must be mapped everywhere again.
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
	mapErr := w.mapAgain(ctx, sharedSegments) // also ends the suspension, even after shareErr
	w.noteMapResult(cmp.Or(shareErr, mapErr))
	if err := r.exchangeResults(ctx, w); err != nil { // sets isMappedEverywhere
		return err
	}

	if wasMappedEverywhere && !w.isMappedEverywhere {
		return fmt.Errorf("peers' memory could not be mapped again: %s", w.notMappedReason)
	}

	return nil
}

// mapAgain maps the segments of other ranks at their old addresses. It ends the suspension even if
// it returns an error, unless the group has failed.
func (w *window) mapAgain(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	r.mu.Lock() // prevents the teardown of a failing group from freeing the addresses
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

// noteMapResult stores the result of mapping the segments of the other ranks.
func (w *window) noteMapResult(err error) {
	w.isMappedHere = err == nil
	w.mapErrorText = ""
	isOwnError := err != nil && !errors.Is(err, errNotShared)
	if isOwnError {
		w.mapErrorText = err.Error()
	}
}
