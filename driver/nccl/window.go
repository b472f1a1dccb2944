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

// window implements driver.Window: a segment of memory that all ranks of a group have registered
// with the group. The peers of a rank are the other ranks of the group.
type window struct {
	registrar *registrar
	key       driver.SegmentKey
	segment   *memory.Segment // this rank's segment
	handle    nccl.Window     // 0 if NCCL has not registered the window
	useCount  memory.UseCount // counts graphs of other libraries that use the window
	// machineWindow is the same segment's window in levels.machineLevel. It is nil if the group has
	// no levels (communicators within a machine and between machines).
	machineWindow *window
	peerMappings
	suspension windowSuspension
}

// windowSuspension is the state of a window between Suspend and Resume. The group's lock guards
// it.
type windowSuspension struct {
	// isActive is set while the peers' segments are unmapped, but their addresses stay reserved.
	isActive bool
	// mustRegister is set if Resume must register the window with NCCL.
	mustRegister bool
}

// mergeResult merges the result of registering w on the given rank into w. symmem's own kernels
// use a window only if every rank has mapped the segments of all ranks.
func (w *window) mergeResult(rank int, result *registerResult) {
	if result.Reason != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", rank, control.Printable(result.Reason))
	}
	w.isMappedByAll = w.isMappedByAll && !result.NotMapped
}

// Deregister deregisters the window and unmaps the peers' segments. If graphs of other libraries
// use the window, this happens only after they have been destroyed.
func (w *window) Deregister() error {
	if w.machineWindow != nil {
		return errors.Join(w.machineWindow.Deregister(), w.deregisterSelf())
	}
	return w.deregisterSelf()
}

func (w *window) deregisterSelf() error {
	r := w.registrar
	if r.plane.Cause() != nil {
		const checkOnly = false
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
	return errors.Join(w.deregister(), w.unmapPeers())
}

// deferDeregistration defers the deregistration until other libraries have destroyed all graphs
// that use the window. It returns false if no such graph exists, and the caller must deregister
// the window.
func (w *window) deferDeregistration() bool {
	r := w.registrar
	return r.memory.UseCounts.DeferUntilUnused(&w.useCount, &w.segment.UseCount, func() error {
		r.mu.Lock()
		err := r.gpu.Do(w.deregister)
		r.mu.Unlock()
		return errors.Join(err, w.unmapPeers())
	})
}

func compareWindowKeys(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// deregister deregisters the window from NCCL, if it is registered. An error makes the group fail,
// because calls over other memory at these addresses could use the window. The caller must hold
// the group's lock.
func (w *window) deregister() error {
	if w.handle == 0 {
		return nil
	}
	handle, r := w.handle, w.registrar
	w.handle = 0
	if err := r.comm.deregister(handle); err != nil {
		return r.plane.Fail(fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, err))
	}
	return nil
}

type peerMappings struct {
	// addresses holds the addresses of the segments of all ranks, by group rank. An address is 0,
	// and the slice may be nil, if the segment is not mapped.
	addresses []uintptr
	// hasMappedAll is set if this rank has mapped all segments. Otherwise mapError is the reason,
	// or "" if another rank did not share its segment.
	hasMappedAll bool
	mapError     string
	// isMappedByAll is set if every rank has mapped all segments. Otherwise notMappedReason has the
	// first reason.
	isMappedByAll   bool
	notMappedReason string

	isUnmapped atomic.Bool // unmapPeers has been called
}

func segmentShareKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	name := fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool, key.Ordinal)
	return handoff.Key{Namespace: handoff.NamespaceOf(name)}
}

// mapPeers maps the other ranks' segments, at their old addresses if the window is suspended.
func (w *window) mapPeers(ctx context.Context, sharedSegments [][]byte) error {
	registrar := w.registrar
	if registrar.direct.unavailableReason != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(sharedSegments, func(shared []byte) bool { return len(shared) == 0 }) {
		return errNotShared
	}
	if w.addresses == nil {
		w.addresses = make([]uintptr, len(registrar.cfg.Ranks))
	}
	for r, rank := range registrar.cfg.Ranks {
		if r == registrar.cfg.Rank {
			w.addresses[r] = w.segment.Address()
			continue
		}
		key := segmentShareKey(registrar.cfg, w.key)
		var address uintptr
		err := control.Fetch(ctx, registrar.plane, registrar.cfg, r,
			"registering a segment in group "+registrar.cfg.Name(), func() (err error) {
				address, err = registrar.direct.sharing.MapShared(ctx, rank, key,
					sharedSegments[r][1:], w.segment.Bytes(), w.addresses[r])
				return err
			})
		if err != nil {
			return errors.Join(err, w.unmapFirstPeers(r))
		}
		w.addresses[r] = address
	}
	return nil
}

// PeerAddresses returns the addresses at which this rank has mapped the segments of all ranks, by
// group rank. After that, the teardown waits for Close before it unmaps them (freeDirectMemory).
func (w *window) PeerAddresses() ([]uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.isUnmapped.Load() {
		return nil, driver.ErrClosed
	}
	if !w.isMappedByAll {
		reason := cmp.Or(r.direct.unavailableReason, w.notMappedReason, errNotShared.Error())
		return nil, fmt.Errorf("peers' memory could not be mapped: %s: %w", reason,
			driver.ErrUnsupported)
	}
	r.programHasPeerAddresses.Store(true)
	return slices.Clone(w.addresses[:len(r.cfg.Ranks)]), nil
}

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
	return 0, driver.ErrClosed
}

// unmapPeers unmaps the other ranks' segments and frees their addresses, once no work of the
// device can use them. It must be called after all kernels of the group that use them have exited.
// Only the first call has an effect.
func (w *window) unmapPeers() error {
	if w.isUnmapped.Swap(true) {
		return nil
	}
	g := w.registrar.gpu
	addresses := w.addresses
	isSuspended := w.suspension.isActive
	w.addresses = make([]uintptr, len(addresses))
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error {
			var errs []error
			for r, address := range addresses {
				if address == 0 || r == w.registrar.cfg.Rank {
					continue
				}
				if !isSuspended { // otherwise only the address is left
					errs = append(errs, g.CUDA.Unmap(address, w.segment.Bytes()))
				}
				errs = append(errs, g.CUDA.AddressFree(address, w.segment.Bytes()))
			}
			return errors.Join(errs...)
		})
	})
}

// Locate returns the addresses that correspond to an address in this rank's segment: those with
// the same offset in the segments of all ranks, by group rank.
func (w *window) Locate(address uintptr) (addresses []uintptr) {
	for _, segment := range w.addresses {
		addresses = append(addresses, segment+address-w.segment.Address())
	}
	return addresses
}

// unmapFirstPeers unmaps the segments of the first count ranks and keeps their addresses reserved.
// If the window is not suspended, it calls unmapPeers instead.
func (w *window) unmapFirstPeers(count int) error {
	g := w.registrar.gpu
	if !w.suspension.isActive {
		return w.unmapPeers()
	}
	return g.Do(func() error {
		var errs []error
		for r, address := range w.addresses[:min(count, len(w.addresses))] {
			if address != 0 && r != w.registrar.cfg.Rank {
				errs = append(errs, g.CUDA.Unmap(address, w.segment.Bytes()))
			}
		}
		return errors.Join(errs...)
	})
}
