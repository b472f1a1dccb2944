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

type window struct {
	registrar *registrar
	key       driver.SegmentKey
	segment   *memory.Segment
	handle    nccl.Window // 0 if NCCL has not registered the window
	useCount  memory.UseCount
	// machineWindow is the same segment's window in levels.machineLevel. It is nil if the group has
	// no levels (communicators within a machine and between machines).
	machineWindow *window
	peerMappings
	suspension windowSuspension
}

// windowSuspension is guarded by the group's lock.
type windowSuspension struct {
	// While isActive is set, the peers' segments are unmapped, but their addresses stay reserved.
	isActive     bool
	mustRegister bool
}

// mergeResult merges a rank's result into w. symmem's own kernels use a window only if every rank
// has mapped the segments of all ranks.
func (w *window) mergeResult(rank int, result *registerResult) {
	if result.Reason != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", rank, control.Printable(result.Reason))
	}
	w.isMappedByAll = w.isMappedByAll && !result.NotMapped
}

func (w *window) Deregister() error {
	if w.machineWindow != nil {
		return errors.Join(w.machineWindow.Deregister(), w.deregisterSelf())
	}
	return w.deregisterSelf()
}

func (w *window) deregisterSelf() error {
	r := w.registrar
	if r.plane.Cause() != nil {
		// The teardown deregisters the window.
		if err := r.stages.await(r.stages.kernelsEnded, false); err != nil {
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
// that use the window. Without these graphs, it returns false.
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

// deregister makes the group fail if NCCL returns an error. Otherwise, calls over other memory at
// these addresses could use the window.
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
	addresses []uintptr
	// hasMappedAll is set if this rank has mapped all segments. Otherwise mapError is the reason,
	// or "" if another rank did not share its segment.
	hasMappedAll bool
	mapError     string
	// isMappedByAll is set if every rank has mapped all segments. Otherwise notMappedReason has the
	// first reason.
	isMappedByAll   bool
	notMappedReason string

	isUnmapped atomic.Bool
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

func (w *window) PeerAddresses() ([]uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	switch reason := cmp.Or(r.direct.unavailableReason, w.notMappedReason); {
	case w.isUnmapped.Load():
		return nil, driver.ErrClosed
	case !w.isMappedByAll:
		return nil, fmt.Errorf("peers' memory could not be mapped: %s: %w",
			cmp.Or(reason, errNotShared.Error()), driver.ErrUnsupported)
	}
	r.programHasPeerAddresses.Store(true)
	return slices.Clone(w.addresses[:len(r.cfg.Ranks)]), nil
}

func (w *window) Handle() (uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	switch cause := r.plane.Cause(); {
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

// unmapPeers must be called after all kernels that use the other ranks' segments have exited.
func (w *window) unmapPeers() error {
	if w.isUnmapped.Swap(true) {
		return nil
	}
	g := w.registrar.gpu
	addresses, suspended := w.addresses, w.suspension.isActive
	w.addresses = make([]uintptr, len(addresses))
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error {
			var errs []error
			for r, address := range addresses {
				if address == 0 || r == w.registrar.cfg.Rank {
					continue
				}
				if !suspended {
					errs = append(errs, g.CUDA.Unmap(address, w.segment.Bytes()))
				}
				errs = append(errs, g.CUDA.AddressFree(address, w.segment.Bytes()))
			}
			return errors.Join(errs...)
		})
	})
}

// Locate returns the addresses of the same offset in the segments of all ranks.
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
