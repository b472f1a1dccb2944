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

// window implements driver.Window for a segment that is registered with a group.
//
// States: registered; suspended, from Suspend to Resume; deregistered, by Deregister or by the
// teardown of the group.
type window struct {
	of      *registrar
	key     driver.SegmentKey
	segment *memory.Segment
	// handle is 0 if the window is not registered with NCCL. The communicator may have no window
	// kernels.
	handle nccl.Window
	uses   memory.UseCount
	// twin registers the same segment with the ranks of this machine, for the two-level path. It is
	// nil without that path.
	twin *window
	peers
	suspension windowSuspension
}

// windowSuspension holds the state of a suspended window. The group's lock guards it.
type windowSuspension struct {
	// active reports whether the peers' segments are unmapped and their addresses stay reserved.
	active bool
	// registered reports whether Resume registers the window with NCCL again.
	registered bool
}

// merge adds the result of a rank. Direct kernels use the segments only if every rank has mapped
// all of them. Otherwise, merge keeps the first rank's reason.
func (w *window) merge(rank int, theirs *registerResult) {
	if theirs.Why != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", rank, control.Printable(theirs.Why))
	}
	w.mappedByAll = w.mappedByAll && !theirs.NotMapped
}

// Deregister deregisters the window on this rank.
func (w *window) Deregister() error {
	if w.twin != nil {
		return errors.Join(w.twin.Deregister(), w.deregisterSelf())
	}
	return w.deregisterSelf()
}

// deregisterSelf deregisters the window without its twin.
func (w *window) deregisterSelf() error {
	r := w.of
	if r.plane.Cause() != nil {
		// The teardown deregisters the window when no kernel of the group can be using it any more.
		if err := r.stages.await(r.stages.kernelsEnded, false); err != nil {
			return err
		}
		if w.deferDeregister() {
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
	if w.deferDeregister() {
		return nil
	}
	return errors.Join(w.deregister(), w.unmapPeers())
}

// deferDeregister defers the deregistration while graphs of other libraries use the window, and
// keeps the segment until then. If no graph uses the window, deferDeregister does nothing and
// returns false.
func (w *window) deferDeregister() bool {
	r := w.of
	return r.memory.UseCounts.DeferUntilUnused(&w.uses, &w.segment.Uses, func() {
		r.mu.Lock()
		_ = r.gpu.Do(w.deregister) // Deregister has returned, so the error is lost
		r.mu.Unlock()
		_ = w.unmapPeers()
	})
}

// byKey compares windows by their keys, which are equal on all ranks.
func byKey(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// deregister deregisters the window with NCCL. The group's lock is held.
func (w *window) deregister() error {
	if w.handle == 0 {
		return nil
	}
	handle := w.handle
	w.handle = 0
	return w.of.comm.deregister(handle)
}

// peers holds this rank's mappings of the other ranks' segments. Direct kernels use these mappings
// and do not need NCCL's windows.
type peers struct {
	// at holds the address of each group rank's segment, including this rank's own.
	at []uintptr
	// mapped reports whether this rank has mapped the segments of all other ranks. If it has not,
	// mapError is the reason. mapError is empty if another rank did not share its segment.
	mapped   bool
	mapError string
	// mappedByAll reports whether every rank has mapped all segments. If not, notMappedReason names
	// a rank and its reason. register sets both fields.
	mappedByAll     bool
	notMappedReason string

	unmapped atomic.Bool // whether unmapPeers was called
}

// peersKey returns the key under which ranks export a segment.
func peersKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	name := fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool, key.Ordinal)
	return handoff.Key{Namespace: handoff.NamespaceOf(name)}
}

// mapPeers maps the segments of the other ranks with the handles that these ranks have sent. The
// segments of a suspended window are mapped at their old addresses. If mapPeers fails, calls on the
// window use other paths.
func (w *window) mapPeers(ctx context.Context, allShared [][]byte) error {
	reg := w.of
	if reg.direct.unavailable != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(allShared, func(shared []byte) bool { return len(shared) == 0 }) {
		return errNotShared
	}
	if w.at == nil {
		w.at = make([]uintptr, len(reg.cfg.Ranks))
	}
	for r, rank := range reg.cfg.Ranks {
		if r == reg.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := reg.direct.sharing.MapShared(ctx, rank, peersKey(reg.cfg, w.key), allShared[r][1:],
			w.segment.Bytes(), w.at[r])
		if err != nil {
			return errors.Join(err, w.undoMapping(r))
		}
		w.at[r] = at
	}
	return nil
}

// PeerAddresses returns the address of each rank's segment, by group rank.
func (w *window) PeerAddresses() ([]uintptr, error) {
	r := w.of
	r.mu.Lock()
	defer r.mu.Unlock()
	switch reason := cmp.Or(r.direct.unavailable, w.notMappedReason); {
	case w.unmapped.Load():
		return nil, driver.ErrClosed
	case !w.mappedByAll:
		return nil, fmt.Errorf("peers' memory could not be mapped: %s: %w",
			cmp.Or(reason, "a rank has shared no memory"), driver.ErrUnsupported)
	}
	return slices.Clone(w.at[:len(r.cfg.Ranks)]), nil
}

// unmapPeers unmaps the other ranks' segments. It must be called after the last kernel that uses
// them has ended. Repeated calls do nothing.
func (w *window) unmapPeers() error {
	if w.unmapped.Swap(true) {
		return nil
	}
	g := w.of.gpu
	peers, suspended := w.at, w.suspension.active
	w.at = make([]uintptr, len(peers))
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error {
			var errs []error
			for r, at := range peers {
				if at == 0 || r == w.of.cfg.Rank {
					continue
				}
				if !suspended {
					errs = append(errs, g.CUDA.Unmap(at, w.segment.Bytes()))
				}
				errs = append(errs, g.CUDA.AddressFree(at, w.segment.Bytes()))
			}
			return errors.Join(errs...)
		})
	})
}

// Locate returns the address of a buffer on every rank. All ranks have the buffer at the same
// offset.
func (w *window) Locate(address uintptr) (at []uintptr) {
	for _, segment := range w.at {
		at = append(at, segment+address-w.segment.Address())
	}
	return at
}

// undoMapping unmaps the other ranks' segments. If the window is suspended, undoMapping unmaps only
// the segments of the first n ranks, and the addresses stay reserved.
func (w *window) undoMapping(n int) error {
	g := w.of.gpu
	if !w.suspension.active {
		return w.unmapPeers()
	}
	return g.Do(func() error {
		var errs []error
		for r, at := range w.at[:min(n, len(w.at))] {
			if at != 0 && r != w.of.cfg.Rank {
				errs = append(errs, g.CUDA.Unmap(at, w.segment.Bytes()))
			}
		}
		return errors.Join(errs...)
	})
}
