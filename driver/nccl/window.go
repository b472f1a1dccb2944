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

// window is one segment registered with one group.
//
// States: registered; deregistered, by Deregister or because the group has ended. NCCL returns a
// handle of 0 for a communicator that has no window kernels: that is no error, and there is nothing
// to deregister.
type window struct {
	of      *registrar
	key     driver.SegmentKey
	segment *memory.Segment
	handle  nccl.Window
	uses    memory.UseCount
	peers
}

// merge notes whether a rank has mapped the segments of all others, and keeps the first reason why
// not: if one rank has not mapped them, none uses them.
func (w *window) merge(rank int, theirs *registerResult) {
	if theirs.Why != "" && w.whyNotMapped == "" {
		w.whyNotMapped = fmt.Sprintf("rank %d: %s", rank, control.Printable(theirs.Why))
	}
	w.mappedByAll = w.mappedByAll && !theirs.NotMapped
}

// Deregister takes the registration back on this rank.
func (w *window) Deregister() error {
	r := w.of
	if r.plane.Cause() != nil {
		// It ends with its communicator, whose kernels may still be at work on it.
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

// deferDeregister puts the deregistration off, and keeps the segment, until no graph of another
// library has calls on the window. It reports false if none has.
func (w *window) deferDeregister() bool {
	r := w.of
	return r.memory.UseCounts.DeferUntilUnused(&w.uses, &w.segment.Uses, func() {
		r.mu.Lock()
		_ = r.gpu.Do(w.deregister) // Deregister has returned, so the error has no reader
		r.mu.Unlock()
		_ = w.unmapPeers()
	})
}

// inOrder compares windows by their keys, which are the same on all ranks.
func inOrder(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// deregister gives the window back to NCCL. The group's lock is held.
func (w *window) deregister() error {
	if w.handle == 0 {
		return nil
	}
	handle := w.handle
	w.handle = 0
	return w.of.comm.deregister(handle)
}

// peers are the segments of the other ranks under a window, as this rank has them mapped: for
// kernels of our own, which need no window of NCCL's.
type peers struct {
	// at are the segments by group rank; this rank's own is where it always is.
	at [kernels.MaxRanks]uintptr
	// mapped reports whether this rank has mapped the segments of all. If it failed to, mapError
	// says why, unless another rank was the reason.
	mapped   bool
	mapError string
	// mappedByAll reports whether every rank has mapped them, and whyNotMapped says which one has
	// not, and why. Both are known when the window is made.
	mappedByAll  bool
	whyNotMapped string

	unmapped atomic.Bool // whether the mappings were given back
}

// peersKey returns the key under which ranks offer a segment to their peers.
func peersKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: handoff.Space(fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool,
		key.Ordinal))}
}

// mapPeers maps the segments of the other ranks, which all have described in the exchange. If it
// fails, calls on the window take other paths.
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

// unmapPeers gives the mappings of the other ranks' segments back, once, when no kernel may use
// them any more.
func (w *window) unmapPeers() error {
	if w.unmapped.Swap(true) {
		return nil
	}
	g := w.of.gpu
	peers := w.at
	w.at = [kernels.MaxRanks]uintptr{}
	return g.GiveBack(func() error {
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

// locate finds a buffer on all ranks: at this rank's offset, as NCCL does.
func (w *window) locate(address uintptr, at *[kernels.MaxRanks]uintptr) {
	offset := address - w.segment.Address()
	for r := range w.of.cfg.Ranks {
		at[r] = w.at[r] + offset
	}
}
