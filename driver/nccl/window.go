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

// In a group of 2 ranks, each rank has a segment of GPU memory: rank 0 at address 0x1000, and rank
// 1 at 0x8000. Both segments together are a window. Rank 1 is called the peer of rank 0.
//
//   - Rank 0 maps the peer's segment, for example at 0x5000. symmem's kernels on rank 0 can then
//     access both segments, at 0x1000 and 0x5000.
//   - Some groups register the window with NCCL, too, and get a handle for NCCL's kernels.
//   - Suspend deregisters the window from NCCL and unmaps the peer's segment. The address 0x5000
//     stays reserved: nothing else is mapped there until Resume maps the segment there again.
//   - A graph of another library, such as PyTorch, may use the window. It then remains as it is
//     until the graph is destroyed, even after Deregister.
//   - A group ends when it fails or is closed. A goroutine, its teardown, then frees its windows.

// window implements driver.Window for this process, which is one rank of a group.
type window struct {
	registrar  *registrar        // registers the group's windows; its mu is the group's lock
	key        driver.SegmentKey // identifies the window; the same on all ranks
	segment    *memory.Segment   // this rank's segment
	handle     nccl.Window       // 0 unless the window is registered with NCCL
	useCount   memory.UseCount   // counts the graphs of other libraries that use the window
	suspension windowSuspension  // guarded by the group's lock
	// machineWindow consists only of this machine's segments. It is nil unless the group has a second
	// communicator, for the ranks of this machine.
	machineWindow *window

	// addresses holds the address of each rank's segment in this process, by group rank. It is 0 if
	// the segment is not mapped and has no reserved address. The slice is nil before mapPeers.
	addresses          []uintptr
	isMappedHere       bool   // this rank has mapped all segments
	mapErrorText       string // this rank's error if it could not share, or map a shared segment
	isMappedEverywhere bool   // every rank has mapped all segments
	notMappedReason    string // usually the first mapErrorText of any rank, with the rank
	// isUnmapped is set by unmapPeers, and cleared by Resume. It is atomic, because Deregister and
	// the teardown can call unmapPeers at the same time.
	isUnmapped atomic.Bool
}

// windowSuspension is the state of a window between Suspend and Resume. The peers' segments are
// not mapped in this state, but their addresses stay reserved.
type windowSuspension struct {
	isActive     bool // Suspend has been called, and Resume has not
	mustRegister bool // Resume must register the window with NCCL
}

// compareWindowKeys orders windows in the same way on all ranks, as NCCL requires.
func compareWindowKeys(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// segmentShareKey returns the key under which each rank shares its segment with its peers.
func segmentShareKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	name := fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool, key.Ordinal)
	return handoff.Key{Namespace: handoff.NamespaceOf(name)}
}

// mapPeers maps the peers' segments, at their reserved addresses if there are any. messages holds
// each rank's memory.Shared.Encode, by group rank: empty if the rank has not shared its segment.
func (w *window) mapPeers(ctx context.Context, messages [][]byte) error {
	r := w.registrar
	if r.direct.unavailableReason != "" { // the group cannot use symmem's kernels
		return driver.ErrUnsupported
	}

	if slices.ContainsFunc(messages, func(message []byte) bool { return len(message) == 0 }) {
		return errNotShared
	}

	if w.addresses == nil {
		w.addresses = make([]uintptr, len(r.cfg.Ranks))
	}

	for rank := range r.cfg.Ranks {
		if rank == r.cfg.Rank {
			w.addresses[rank] = w.segment.Address()
			continue
		}

		address, err := w.mapPeer(ctx, rank, messages[rank])
		switch {
		case err == nil:
			w.addresses[rank] = address
		case w.suspension.isActive: // Resume then frees the addresses
			return errors.Join(err, w.unmapKeepingAddresses(rank))
		default:
			return errors.Join(err, w.unmapPeers())
		}
	}

	return nil
}

// noteMapResult stores the result of mapPeers for exchangeResults.
func (w *window) noteMapResult(err error) {
	w.isMappedHere = err == nil
	w.mapErrorText = ""
	if err != nil && !errors.Is(err, errNotShared) { // errNotShared is due to another rank
		w.mapErrorText = err.Error()
	}
}

// mapPeer maps the segment of the peer with the given group rank, and returns its address. The peer
// has shared it by a fabric handle (data from CUDA) or, if that is empty, by a file under a key.
func (w *window) mapPeer(ctx context.Context, rank int, message []byte) (uintptr, error) {
	r := w.registrar
	worldRank := r.cfg.Ranks[rank] // the peer's rank among all ranks of the program
	key := segmentShareKey(r.cfg, w.key)
	fabricHandle := message[1:]  // after a byte that distinguishes it from an empty message
	address := w.addresses[rank] // reserved, or 0 for any address
	callText := "registering a segment in group " + r.cfg.Name()
	err := control.Fetch(ctx, r.plane, r.cfg, rank, callText, func() (err error) {
		address, err = r.direct.sharing.MapShared(ctx, worldRank, key, fabricHandle,
			w.segment.Bytes(), address)
		return err
	})
	return address, err
}

// unmapKeepingAddresses unmaps the peers' segments, and keeps their addresses reserved. Only the
// segments of the first rankCount ranks must be mapped.
func (w *window) unmapKeepingAddresses(rankCount int) error {
	count := min(rankCount, len(w.addresses)) // 0 if no segment has ever been mapped
	return w.doForPeers(w.addresses[:count], func(address uintptr) error {
		return w.registrar.gpu.CUDA.Unmap(address, w.segment.Bytes())
	})
}

// unmapPeers unmaps the peers' segments and frees their addresses. Call it after the group's
// kernels that use them have exited. If other work of the GPU might use them, unmapPeers returns
// nil, and a later GPU.Reclaim unmaps and frees. It does nothing if isUnmapped is set.
func (w *window) unmapPeers() error {
	if w.isUnmapped.Swap(true) {
		return nil
	}

	g := w.registrar.gpu
	addresses := w.addresses
	areMapped := !w.suspension.isActive // otherwise, Suspend has unmapped them
	w.addresses = make([]uintptr, len(addresses))
	unmapAndFree := func(address uintptr) (unmapErr error) {
		if areMapped {
			unmapErr = g.CUDA.Unmap(address, w.segment.Bytes())
		}

		freeErr := g.CUDA.AddressFree(address, w.segment.Bytes())
		return errors.Join(unmapErr, freeErr)
	}
	return g.FreeWhenIdle(func() error { return w.doForPeers(addresses, unmapAndFree) })
}

// doForPeers calls call in the CUDA context with each peer's address, unless it is 0.
func (w *window) doForPeers(addresses []uintptr, call func(address uintptr) error) error {
	return w.registrar.gpu.Do(func() error {
		var errs []error
		for rank, address := range addresses {
			if address != 0 && rank != w.registrar.cfg.Rank {
				errs = append(errs, call(address))
			}
		}

		return errors.Join(errs...)
	})
}

// mergeResult merges one rank's result into isMappedEverywhere and notMappedReason. Before the
// first call, the caller sets them to true and "". It then calls mergeResult for each rank.
func (w *window) mergeResult(worldRank int, result *registerResult) {
	if result.Reason != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", worldRank, control.Printable(result.Reason))
	}

	if result.NotMapped {
		w.isMappedEverywhere = false
	}
}

// PeerAddresses returns the address of each rank's segment in this process, by group rank. The
// program may use the addresses until it closes the group, even if the group fails before that.
func (w *window) PeerAddresses() ([]uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.isUnmapped.Load() {
		return nil, driver.ErrClosed
	}

	if !w.isMappedEverywhere {
		// The first text that is not "". If no rank has a reason, some rank has shared no segment.
		reason := cmp.Or(r.direct.unavailableReason, w.notMappedReason, errNotShared.Error())
		return nil, fmt.Errorf("peers' memory could not be mapped: %s: %w", reason,
			driver.ErrUnsupported)
	}

	r.programHasPeerAddresses.Store(true) // the teardown then waits for the close
	return slices.Clone(w.addresses), nil
}

// Locate returns the address at the same offset in each rank's segment, by group rank.
func (w *window) Locate(address uintptr) (addresses []uintptr) {
	offset := address - w.segment.Address()
	for _, segmentAddress := range w.addresses {
		addresses = append(addresses, segmentAddress+offset)
	}

	return addresses
}

// Handle returns NCCL's handle, an ncclWindow_t. If there is none, the error says why.
func (w *window) Handle() (uintptr, error) {
	r := w.registrar
	r.mu.Lock()
	defer r.mu.Unlock()
	endCause := r.plane.Cause() // nil unless the group has ended
	switch {
	case endCause != nil:
		return 0, endCause
	case w.handle != 0:
		return uintptr(w.handle), nil
	case r.windowSupport.noWindowsReason != "": // NCCL cannot register windows
		return 0, fmt.Errorf("%s: %w", r.windowSupport.noWindowsReason, driver.ErrUnsupported)
	case r.mustSkipWindows(): // NCCL could, but the group does not need it
		return 0, errNoWindows
	default: // the window has been deregistered
		return 0, driver.ErrClosed
	}
}

// Deregister deregisters the window from NCCL and unmaps the peers' segments. If graphs of other
// libraries use the window, Deregister returns nil, and does this after they have been destroyed.
func (w *window) Deregister() error {
	if w.machineWindow == nil {
		return w.deregisterSelf()
	}

	machineErr := w.machineWindow.Deregister()
	return errors.Join(machineErr, w.deregisterSelf())
}

// deregisterSelf is Deregister without the machineWindow.
func (w *window) deregisterSelf() error {
	r := w.registrar
	hasGroupEnded := r.plane.Cause() != nil
	if hasGroupEnded {
		err := r.stages.await(r.stages.kernelsEnded) // the teardown deregisters the window from NCCL
		if err != nil || w.deferIfUsed() {
			return err
		}

		return w.unmapPeers()
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.windows[w.key] != w {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}

	delete(r.windows, w.key)
	if w.deferIfUsed() {
		return nil
	}

	deregisterErr := w.deregisterFromNCCL()
	return errors.Join(deregisterErr, w.unmapPeers())
}

// deferIfUsed defers the deregistration if graphs of other libraries use the window. It returns
// true in this case. The segment is not freed before the deferred deregistration.
func (w *window) deferIfUsed() bool {
	r := w.registrar
	return r.memory.UseCounts.DeferUntilUnused(&w.useCount, &w.segment.UseCount, func() error {
		r.mu.Lock()
		deregisterErr := r.gpu.Do(w.deregisterFromNCCL)
		r.mu.Unlock()
		return errors.Join(deregisterErr, w.unmapPeers())
	})
}

// deregisterFromNCCL deregisters the window from NCCL, if it is registered. The caller must hold
// the group's lock. An error makes the group fail, because NCCL may still have the window: if other
// memory was later mapped at its addresses, calls on that memory would use the old window.
func (w *window) deregisterFromNCCL() error {
	if w.handle == 0 {
		return nil
	}

	handle := w.handle
	w.handle = 0
	if err := w.registrar.comm.deregister(handle); err != nil {
		return w.registrar.plane.Fail(fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}
