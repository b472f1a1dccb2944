package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/memory"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/nccl"
)

// window implements driver.Window. It consists of one segment of memory on each rank of a group,
// which the ranks have registered together. The peers of a rank are the other ranks of the group.
type window struct {
	registrar *registrar
	key       driver.SegmentKey // pool, and number of the segment in it; the same on all ranks
	segment   *memory.Segment   // this rank's segment
	handle    nccl.Window       // 0 if NCCL has not registered the window
	useCount  memory.UseCount   // counts graphs of other libraries that use the window
	// machineWindow is the window of the same segment in the group's machine level, a communicator
	// of the ranks on this machine. It is nil if the group has no such level.
	machineWindow *window
	peerMappings  // where the segments are mapped
	suspension    windowSuspension
}

// windowSuspension is the state of a window between Suspend and Resume. The group's lock guards
// it.
type windowSuspension struct {
	// isActive is set between Suspend and Resume. The peers' segments are then unmapped, but their
	// addresses stay reserved.
	isActive bool
	// mustRegister is set if Resume must register the window with NCCL.
	mustRegister bool
}

// mergeResult takes over into w what the given rank has reported about registering the window. The
// caller sets isMappedEverywhere first, and calls mergeResult for each rank. symmem's own kernels
// use a window only if isMappedEverywhere is still set after that.
func (w *window) mergeResult(rank int, result *registerResult) {
	if result.Reason != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", rank, control.Printable(result.Reason))
	}

	if result.NotMapped {
		w.isMappedEverywhere = false
	}
}

// Deregister deregisters the window and unmaps the peers' segments. If graphs of other libraries
// use the window, this happens only after they have been destroyed.
func (w *window) Deregister() error {
	if w.machineWindow == nil {
		return w.deregisterSelf()
	}

	machineErr := w.machineWindow.Deregister()
	selfErr := w.deregisterSelf()
	return errors.Join(machineErr, selfErr)
}

// deregisterSelf is Deregister without the machineWindow. If the group has failed or is closed, the
// group's teardown deregisters the window. In that case, deregisterSelf waits for the teardown, and
// only unmaps the peers' segments.
func (w *window) deregisterSelf() error {
	r := w.registrar
	if r.plane.Cause() != nil {
		const checkOnly = false // wait for the stage
		// The teardown deregisters the window before it closes kernelsEnded.
		if err := r.stages.await(r.stages.kernelsEnded, checkOnly); err != nil {
			return err
		}

		if w.deferDeregistration() {
			return nil
		}

		return w.unmapPeers()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.windows[w.key] != w {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}

	delete(r.windows, w.key)
	if w.deferDeregistration() {
		return nil
	}

	deregisterErr := w.deregister()
	unmapErr := w.unmapPeers()
	return errors.Join(deregisterErr, unmapErr)
}

// deferDeregistration defers the deregistration until other libraries have destroyed all graphs
// that use the window, and returns true. If no such graph exists, it does nothing and returns
// false. The caller must then deregister the window.
func (w *window) deferDeregistration() bool {
	r := w.registrar
	return r.memory.UseCounts.DeferUntilUnused(&w.useCount, &w.segment.UseCount, func() error {
		r.mu.Lock()
		deregisterErr := r.gpu.Do(w.deregister)
		r.mu.Unlock()
		unmapErr := w.unmapPeers()
		return errors.Join(deregisterErr, unmapErr)
	})
}

// compareWindowKeys orders windows in the same way on all ranks.
func compareWindowKeys(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// deregister deregisters the window from NCCL, if it is registered. The caller must hold the
// group's lock.
//
// An error makes the group fail. NCCL may then still have the window, although other memory can
// later be mapped at its addresses. Calls on that memory would use the old window.
func (w *window) deregister() error {
	if w.handle == 0 {
		return nil
	}

	r := w.registrar
	handle := w.handle
	w.handle = 0
	if err := r.comm.deregister(handle); err != nil {
		return r.plane.Fail(fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}

// peerMappings describes where the segments of all ranks are mapped in this process.
type peerMappings struct {
	// addresses holds the addresses of the segments of all ranks, by group rank. The address of a
	// segment that is not mapped is 0. The slice is nil before the first attempt to map segments.
	addresses []uintptr
	// isMappedHere is set if this rank has mapped the segments of all ranks.
	isMappedHere bool
	// mapErrorText is the reason why isMappedHere is not set. It is "" if another rank did not
	// share its segment, because that rank reports the reason.
	mapErrorText string
	// isMappedEverywhere is set if every rank has mapped the segments of all ranks.
	isMappedEverywhere bool
	// notMappedReason is the first reason why isMappedEverywhere is not set, or "" if no rank has
	// given one.
	notMappedReason string

	isUnmapped atomic.Bool // unmapPeers has been called
}

// segmentShareKey returns the key under which each rank shares its segment with its peers.
func segmentShareKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	name := fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool, key.Ordinal)
	return handoff.Key{Namespace: handoff.NamespaceOf(name)}
}

// mapPeers maps the other ranks' segments, at their old addresses if the window is suspended.
// sharedSegments holds each rank's result of memory.Shared.Encode, by group rank.
func (w *window) mapPeers(ctx context.Context, sharedSegments [][]byte) error {
	r := w.registrar
	if r.direct.unavailableReason != "" {
		return driver.ErrUnsupported
	}

	isEmpty := func(shared []byte) bool { return len(shared) == 0 }
	if slices.ContainsFunc(sharedSegments, isEmpty) {
		return errNotShared
	}

	if w.addresses == nil {
		w.addresses = make([]uintptr, len(r.cfg.Ranks))
	}

	key := segmentShareKey(r.cfg, w.key)
	callText := "registering a segment in group " + r.cfg.Name()
	for groupRank, worldRank := range r.cfg.Ranks {
		if groupRank == r.cfg.Rank {
			w.addresses[groupRank] = w.segment.Address()
			continue
		}

		fabricHandle := sharedSegments[groupRank][1:] // empty unless the ranks use fabric handles
		reserved := w.addresses[groupRank]            // 0 unless the window is suspended
		var address uintptr
		err := control.Fetch(ctx, r.plane, r.cfg, groupRank, callText, func() (err error) {
			address, err = r.direct.sharing.MapShared(ctx, worldRank, key, fabricHandle,
				w.segment.Bytes(), reserved)
			return err
		})
		if err != nil {
			unmapErr := w.unmapFirstPeers(groupRank)
			return errors.Join(err, unmapErr)
		}

		w.addresses[groupRank] = address
	}

	return nil
}

// PeerAddresses returns the addresses at which this rank has mapped the segments of all ranks, by
// group rank. The program may use the addresses until it closes the group, even if the group fails
// before that (see teardown.freeDirectMemory).
func (w *window) PeerAddresses() ([]uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.isUnmapped.Load() {
		return nil, driver.ErrClosed
	}

	if !w.isMappedEverywhere {
		// The first text that is not empty.
		reason := cmp.Or(r.direct.unavailableReason, w.notMappedReason, errNotShared.Error())
		return nil, fmt.Errorf("peers' memory could not be mapped: %s: %w", reason,
			driver.ErrUnsupported)
	}

	r.programHasPeerAddresses.Store(true)
	return slices.Clone(w.addresses), nil
}

// Handle returns the ncclWindow_t. Without one, it returns an error with the reason.
func (w *window) Handle() (uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	cause := r.plane.Cause()
	switch {
	case cause != nil:
		return 0, cause
	case w.handle != 0:
		return uintptr(w.handle), nil
	case r.windowSupport.noWindowsReason != "":
		return 0, fmt.Errorf("%s: %w", r.windowSupport.noWindowsReason, driver.ErrUnsupported)
	case r.mustSkipWindows():
		return 0, errNoWindows
	}

	return 0, driver.ErrClosed // the window has been deregistered
}

// unmapPeers unmaps the other ranks' segments and frees their addresses, once no work of the
// device can use them. Call it after all kernels of the group that use them have exited. Only the
// first call has an effect.
func (w *window) unmapPeers() error {
	if w.isUnmapped.Swap(true) {
		return nil
	}

	g := w.registrar.gpu
	addresses := w.addresses
	isSuspended := w.suspension.isActive
	w.addresses = make([]uintptr, len(addresses))
	unmapAndFree := func() error {
		var errs []error
		for rank, address := range addresses {
			if address == 0 || rank == w.registrar.cfg.Rank {
				continue
			}

			if !isSuspended { // Suspend has unmapped the segment, and has kept the address
				errs = append(errs, g.CUDA.Unmap(address, w.segment.Bytes()))
			}

			errs = append(errs, g.CUDA.AddressFree(address, w.segment.Bytes()))
		}

		return errors.Join(errs...)
	}
	return g.FreeWhenIdle(func() error { return g.Do(unmapAndFree) })
}

// Locate returns, by group rank, the address in each rank's segment that has the same offset as the
// given address in this rank's segment.
func (w *window) Locate(address uintptr) (addresses []uintptr) {
	offset := address - w.segment.Address()
	for _, segmentAddress := range w.addresses {
		addresses = append(addresses, segmentAddress+offset)
	}

	return addresses
}

// unmapFirstPeers unmaps the segments of the first count ranks. If the window is suspended, their
// addresses stay reserved for Resume. Otherwise it calls unmapPeers, which frees all addresses.
func (w *window) unmapFirstPeers(count int) error {
	g := w.registrar.gpu
	if !w.suspension.isActive {
		return w.unmapPeers()
	}

	return g.Do(func() error {
		var errs []error
		count = min(count, len(w.addresses)) // w.addresses may be nil
		for rank, address := range w.addresses[:count] {
			if address != 0 && rank != w.registrar.cfg.Rank {
				errs = append(errs, g.CUDA.Unmap(address, w.segment.Bytes()))
			}
		}

		return errors.Join(errs...)
	})
}
