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

// window implements driver.Window: it registers a segment with a group.
//
// States: registered; deregistered, by Deregister or because the group has ended. NCCL returns
// handle 0 for a communicator without window kernels: that is not an error, and there is nothing to
// deregister.
type window struct {
	of      *registrar
	key     driver.SegmentKey
	segment *memory.Segment
	handle  nccl.Window
	uses    memory.UseCount
	peers
}

// merge adds the result of a rank: the segments are used only if every rank has mapped those of all
// others. It keeps the first reason why not.
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
// library uses the window. It returns false if none does.
func (w *window) deferDeregister() bool {
	r := w.of
	return r.memory.UseCounts.DeferUntilUnused(&w.uses, &w.segment.Uses, func() {
		r.mu.Lock()
		_ = r.gpu.Do(w.deregister) // Deregister has returned, so the error cannot be reported
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

// peers holds this rank's mappings of the other ranks' segments of a window, for direct kernels,
// which need no window of NCCL.
type peers struct {
	// at has the addresses of the segments by group rank, including this rank's own.
	at [kernels.MaxRanks]uintptr
	// mapped reports whether this rank has mapped the segments of all others. If not, mapError is the
	// reason, unless another rank is.
	mapped   bool
	mapError string
	// mappedByAll reports whether every rank has mapped them; if not, whyNotMapped names a rank and
	// its reason. Both are set by register.
	mappedByAll     bool
	notMappedReason string

	unmapped atomic.Bool // whether unmapPeers was called
}

// peersKey returns the key under which ranks export a segment to their peers.
func peersKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: handoff.Space(fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool,
		key.Ordinal))}
}

// mapPeers maps the segments of the other ranks, from the handles that these have sent. If it
// fails, calls on the window use other paths.
func (w *window) mapPeers(ctx context.Context, allShared [][]byte) error {
	g := w.of
	if g.direct.unavailable != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(allShared, func(shared []byte) bool { return len(shared) == 0 }) {
		return errNotShared
	}
	for r, rank := range g.cfg.Ranks {
		if r == g.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := g.direct.sharing.MapShared(ctx, rank, peersKey(g.cfg, w.key), allShared[r][1:],
			w.segment.Bytes())
		if err != nil {
			return errors.Join(err, w.unmapPeers())
		}
		w.at[r] = at
	}
	return nil
}

// unmapPeers unmaps the other ranks' segments, at its first call, once no kernel may use them.
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

// locate stores the addresses of a buffer on all ranks, which has the same offset on each.
func (w *window) locate(address uintptr, at *[kernels.MaxRanks]uintptr) {
	offset := address - w.segment.Address()
	for r := range w.of.cfg.Ranks {
		at[r] = w.at[r] + offset
	}
}
