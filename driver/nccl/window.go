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
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/nccl"
)

// window implements driver.Window for a segment that is registered with a group.
//
// States: registered; deregistered, by Deregister or by the teardown of the group.
type window struct {
	of      *registrar
	key     driver.SegmentKey
	segment *memory.Segment
	// handle is 0 if NCCL has no window, so that there is nothing to deregister with NCCL: for
	// example, if the communicator has no window kernels.
	handle nccl.Window
	uses   memory.UseCount
	peers
}

// merge adds the result of a rank. Direct kernels use the segments only if every rank has mapped
// the segments of all others. Otherwise merge stores the first reason.
func (w *window) merge(rank int, theirs *registerResult) {
	if theirs.Why != "" && w.notMappedReason == "" {
		w.notMappedReason = fmt.Sprintf("rank %d: %s", rank, control.Printable(theirs.Why))
	}
	w.mappedByAll = w.mappedByAll && !theirs.NotMapped
}

// Deregister deregisters the window on this rank.
func (w *window) Deregister() error {
	r := w.of
	if r.plane.Cause() != nil {
		// The teardown deregisters the window, once no kernel of the group may be using it.
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

// deferDeregister defers the deregistration, and keeps the segment, until no graph of another
// library uses the window. If no graph uses the window now, it does nothing and returns false.
func (w *window) deferDeregister() bool {
	r := w.of
	return r.memory.UseCounts.DeferUntilUnused(&w.uses, &w.segment.Uses, func() {
		r.mu.Lock()
		_ = r.gpu.Do(w.deregister) // Deregister has already returned, so the error cannot be reported
		r.mu.Unlock()
		_ = w.unmapPeers()
	})
}

// byKey compares windows by their keys, which are the same on all ranks.
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

// peers holds this rank's mappings of the other ranks' segments of a window. Direct kernels use
// these mappings, and need no window of NCCL.
type peers struct {
	// at holds the addresses of the segments by group rank, including this rank's own segment.
	at [kernels.MaxRanks]uintptr
	// mapped reports whether this rank has mapped the segments of all others. If not, mapError gives
	// the reason, or is empty if another rank did not share its segment.
	mapped   bool
	mapError string
	// mappedByAll reports whether every rank has mapped the segments of all others. If not,
	// notMappedReason names a rank and its reason. Both are set by register.
	mappedByAll     bool
	notMappedReason string

	unmapped atomic.Bool // whether unmapPeers was called
}

// peersKey returns the key under which ranks export a segment to their peers.
func peersKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	name := fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool, key.Ordinal)
	return handoff.Key{Namespace: handoff.NamespaceOf(name)}
}

// mapPeers maps the segments of the other ranks, using the handles that these ranks have sent. If
// it fails, calls on the window use other paths.
func (w *window) mapPeers(ctx context.Context, allShared [][]byte) error {
	reg := w.of
	if reg.direct.unavailable != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(allShared, func(shared []byte) bool { return len(shared) == 0 }) {
		return errNotShared
	}
	for r, rank := range reg.cfg.Ranks {
		if r == reg.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := reg.direct.sharing.MapShared(ctx, rank, peersKey(reg.cfg, w.key), allShared[r][1:],
			w.segment.Bytes())
		if err != nil {
			return errors.Join(err, w.unmapPeers())
		}
		w.at[r] = at
	}
	return nil
}

// unmapPeers unmaps the other ranks' segments. It must be called once no kernel can use them. Later
// calls do nothing.
func (w *window) unmapPeers() error {
	if w.unmapped.Swap(true) {
		return nil
	}
	g := w.of.gpu
	peers := w.at
	w.at = [kernels.MaxRanks]uintptr{}
	return g.FreeWhenIdle(func() error {
		return g.Do(func() error {
			var errs []error
			for r, at := range peers {
				if at != 0 && r != w.of.cfg.Rank {
					errs = append(errs, g.Unmap(at, w.segment.Bytes()))
				}
			}
			return errors.Join(errs...)
		})
	})
}

// locate stores in at the addresses of all ranks' copies of a buffer, which have the same offset on
// every rank.
func (w *window) locate(address uintptr, at *[kernels.MaxRanks]uintptr) {
	offset := address - w.segment.Address()
	for r := range w.of.cfg.Ranks {
		at[r] = w.at[r] + offset
	}
}
