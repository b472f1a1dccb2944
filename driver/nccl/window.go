package nccl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/nccl"
	"symmem/internal/ranked"
)

// window is one segment registered with one communicator.
//
// States: registered; deregistered, by Deregister or because the communicator has ended. A handle
// of 0 is what NCCL gives for a communicator that has no window kernels: it is not an error, and
// there is nothing to deregister.
type window struct {
	c       *communicator
	key     driver.SegmentKey
	segment *memory.Segment
	handle  nccl.Window
	uses    memory.UseCount
	peers
}

// registerResult is what ranks exchange at the end of a registration.
type registerResult struct {
	// NoWindow reports whether NCCL has made none.
	NoWindow bool `json:"no_window,omitempty"`
	// NotMapped reports whether the rank has not mapped the segments of all others, and Why what kept
	// it from that, unless it was another rank.
	NotMapped bool   `json:"no_peers,omitempty"`
	Why       string `json:"why,omitempty"`
}

// registrar registers segments with a communicator.
type registrar struct{ *communicator }

// register makes a window over a segment.
func (c registrar) register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := c.registerOnce(ctx, key, s)
	if err == nil {
		return w, nil
	}
	err = fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	if w != nil {
		// NCCL's communicator may be unusable, and the other ranks may be waiting in it forever.
		_ = c.plane.Fail(err)
	}
	return nil, err
}

// registerOnce registers a segment. It returns both a window and an error if the call of NCCL has
// failed: then the communicator may be unusable.
func (c registrar) registerOnce(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	own, ok := s.(*memory.Segment)
	switch {
	case c.device.streams.Capturing.Load() > 0:
		return nil, driver.ErrCapturing
	case !ok || !c.device.memory.Own(own):
		return nil, errors.New("it is of another device")
	case c.registered(key):
		return nil, errors.New("it is registered already")
	}
	ctx, cancel := control.Bounded(ctx, c.device.cfg.Timeout)
	defer cancel()
	shared, trouble := c.share(key, own)
	defer shared.Withdraw()
	// NCCL pairs windows by their order alone, and a difference gives wrong sums or a hang. Each rank
	// also sends how others can map its segment.
	allShared, err := control.CompareSegments(ctx, c.plane.Exchange, c.cfg.Ranks, key, own.Bytes(),
		shared.Encode())
	if err != nil {
		return nil, err
	}
	w := &window{c: c.communicator, key: key, segment: own}
	if err := c.make(ctx, w); err != nil {
		return w, err
	}
	err = cmp.Or(trouble, w.mapPeers(ctx, allShared))
	w.mapped = err == nil
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapError = err.Error()
	}
	if err := c.commit(ctx, w); err != nil {
		return nil, err
	}
	return w, nil
}

func (c registrar) registered(key driver.SegmentKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.windows[key] != nil
}

// empty reports whether there are no windows.
func (c registrar) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.windows) == 0
}

// useAll has NCCL make the windows of a group that could do without them so far.
func (c registrar) useAll(ctx context.Context) error {
	if c.device.streams.Capturing.Load() > 0 && !c.empty() {
		return driver.ErrCapturing
	}
	ctx, cancel := control.Bounded(ctx, c.device.cfg.Timeout)
	defer cancel()
	if c.useWindows.Swap(true) {
		return nil
	}
	c.mu.Lock()
	windows := slices.SortedFunc(maps.Values(c.windows), inOrder)
	c.mu.Unlock()
	for _, w := range windows {
		err := c.make(ctx, w)
		if err == nil {
			err = c.commit(ctx, w)
		}
		if err != nil {
			return c.plane.Fail(fmt.Errorf("making a window of segment %d: %w", w.key.Ordinal, err))
		}
	}
	return nil
}

// make has NCCL make the window. All ranks are here, and NCCL waits for all of them without a
// deadline: the watcher ends the communicator, and with it the call, if one is lost meanwhile.
func (c registrar) make(ctx context.Context, w *window) error {
	if c.supported.none != "" || c.skipsWindows() {
		return c.keep(w)
	}
	begin := time.Now()
	stop := context.AfterFunc(ctx, func() {
		_ = c.plane.Fail(overdue(ctx, "registering a window with NCCL in group "+c.cfg.Name(), begin))
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy.WakeWatcher()
	if err := c.plane.Cause(); err != nil {
		return err
	}
	// Known from here on, so that it is given back with the communicator if another rank fails.
	c.windows[w.key] = w
	var err error
	w.handle, err = gpu.Get(c.device.gpu, func() (nccl.Window, error) {
		return c.device.nccl.WindowRegister(c.handle, w.segment.Address(), w.segment.Bytes())
	})
	if cause := c.plane.Cause(); err != nil && cause != nil {
		return cause
	}
	return err
}

// keep remembers a window that NCCL does not know.
func (c registrar) keep(w *window) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.windows[w.key] = w
	return c.plane.Cause()
}

// commit makes registration all or nothing: it waits until NCCL has made the window everywhere.
// If it has made none on some rank, no rank uses windows.
func (c registrar) commit(ctx context.Context, w *window) error {
	mine := registerResult{
		NoWindow: w.handle == 0 && !c.skipsWindows(), NotMapped: !w.mapped, Why: w.mapError,
	}
	if mine.NoWindow && c.supported.none == "" {
		defer c.failIfAlone(ctx)()
	}
	encoded, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	all, err := c.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return err
	}
	w.mappedByAll, w.whyNotMapped = true, ""
	for r, encoded := range all {
		var theirs registerResult
		if err := json.Unmarshal(encoded, &theirs); err != nil {
			return fmt.Errorf("reading what rank %d has made: %w", c.cfg.Ranks[r], err)
		}
		if theirs.NoWindow {
			c.withoutWindows(c.cfg.Ranks[r])
		}
		w.merge(c.cfg.Ranks[r], &theirs)
	}
	return nil
}

// merge notes whether a rank has mapped the segments of all others, and keeps the first reason why
// not: if one rank has not mapped them, none uses them.
func (w *window) merge(rank int, theirs *registerResult) {
	if theirs.Why != "" && w.whyNotMapped == "" {
		w.whyNotMapped = fmt.Sprintf("rank %d: %s", rank, control.Printable(theirs.Why))
	}
	w.mappedByAll = w.mappedByAll && !theirs.NotMapped
}

// aloneTimeout is how long the other ranks may need for the call of NCCL that returned here without
// a window. They need no time either, unless NCCL makes windows there.
const aloneTimeout = 5 * time.Second

// failIfAlone fails the group if this rank stays alone without a window: NCCL has returned here
// without meeting the others, and they wait in it for this one, forever.
func (c registrar) failIfAlone(ctx context.Context) (met func()) {
	wait := aloneTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	alone := time.AfterFunc(wait, func() {
		_ = c.plane.Fail(fmt.Errorf("NCCL made no window on rank %d, where it waits for nobody, and "+
			"other ranks wait in it for this one: they are set up differently (symmem doctor)",
			c.cfg.Ranks[c.cfg.Rank]))
	})
	return func() { alone.Stop() }
}

// withoutWindows notes that NCCL has no window kernels for this group.
func (c registrar) withoutWindows(rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.supported.none == "" {
		_, text := c.device.nccl.Version()
		c.supported.none = fmt.Sprintf("NCCL %s made no window on rank %d: it has no window kernels for "+
			"this group (symmem doctor tells why)", text, rank)
	}
}

// Deregister takes the registration back on this rank.
func (w *window) Deregister() error {
	c := w.c
	if c.plane.Cause() != nil {
		// It ends with its communicator, whose kernels may still be at work on it.
		if err := c.awaitEnd(c.kernelsEnded, false); err != nil {
			return err
		}
		if w.deferDeregister() {
			return nil
		}
		return w.unmapPeers()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.windows[w.key] != w {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}
	delete(c.windows, w.key)
	if w.deferDeregister() {
		return nil
	}
	return errors.Join(w.deregister(), w.unmapPeers())
}

// deferDeregister has the registration taken back once no graph of another library has calls on it,
// and the segment stay until then. It reports false if there is none.
func (w *window) deferDeregister() bool {
	return w.c.device.memory.UseCounts.DeferUntilUnused(&w.uses, &w.segment.Uses, func() {
		w.c.mu.Lock()
		_ = w.c.device.gpu.Do(w.deregister) // who took the registration back is gone
		w.c.mu.Unlock()
		_ = w.unmapPeers()
	})
}

// inOrder orders windows alike on all ranks.
func inOrder(a, b *window) int {
	return cmp.Or(cmp.Compare(a.key.Pool, b.key.Pool), cmp.Compare(a.key.Ordinal, b.key.Ordinal))
}

// deregister gives the window back to NCCL. c.mu is held.
func (w *window) deregister() error {
	if w.handle == 0 {
		return nil
	}
	c, handle := w.c, w.handle
	w.handle = 0
	if c.aborting.Load() {
		return nil // it ends with the communicator
	}
	return c.device.gpu.Do(func() error { return c.device.nccl.WindowDeregister(c.handle, handle) })
}

// peers are the segments of the other ranks under a window, as this rank has them mapped: for
// kernels of our own, which need no window of NCCL's.
type peers struct {
	// at are the segments by group rank; this rank's own is where it always is.
	at [kernels.MaxRanks]uintptr
	// mapped reports whether this rank has mapped the segments of all, mapError says what kept it from
	// that unless it was another rank.
	mapped   bool
	mapError string
	// mappedByAll reports whether every rank has, whyNotMapped says which one has not and why. Both
	// are known when the window is made.
	mappedByAll  bool
	whyNotMapped string

	unmapMu ranked.Mutex[peersUnmap] // held while the mappings are taken away
}

func peersKey(group *driver.GroupConfig, key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: handoff.Space(fmt.Sprintf("segment/%s/%d/%d", group.ID, key.Pool,
		key.Ordinal))}
}

// share offers a segment to the other ranks of the group, if kernels of our own serve it.
func (c registrar) share(
	key driver.SegmentKey, s *memory.Segment,
) (shared memory.Shared, err error) {
	if c.direct.unavailable != "" {
		return memory.Shared{}, nil
	}
	d := c.device
	err = d.gpu.Do(func() error {
		handle, err := d.gpu.CUDA.Retain(s.Address())
		if err != nil {
			return err
		}
		defer d.gpu.Release(handle)
		shared, err = c.sharing.Share(peersKey(&c.cfg, key), handle)
		return err
	})
	if err != nil {
		return memory.Shared{}, fmt.Errorf("offering a segment to peers: %w", err)
	}
	return shared, nil
}

// errNotShared is why a rank cannot map the segment of one that could not share it.
var errNotShared = errors.New("a rank shares nothing")

// mapPeers maps the segments of the other ranks, from what all have sent. If it fails, calls
// on the window take other paths.
func (w *window) mapPeers(ctx context.Context, allShared [][]byte) error {
	c := w.c
	if c.direct.unavailable != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(allShared, func(shared []byte) bool { return len(shared) == 0 }) {
		return errNotShared
	}
	for r, rank := range c.cfg.Ranks {
		if r == c.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := c.sharing.MapShared(ctx, rank, peersKey(&c.cfg, w.key), allShared[r][1:],
			w.segment.Bytes())
		if err != nil {
			return errors.Join(err, w.unmapPeers())
		}
		w.at[r] = at
	}
	return nil
}

// unmapPeers gives the mappings of the other ranks' segments back, once no kernel may use them.
func (w *window) unmapPeers() error {
	g := w.c.device.gpu
	w.unmapMu.Lock()
	peers := w.at
	w.at = [kernels.MaxRanks]uintptr{}
	w.unmapMu.Unlock()
	return g.GiveBack(func() error {
		return g.Do(func() error {
			var errs []error
			for r, at := range peers {
				if at != 0 && r != w.c.cfg.Rank {
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
	for r := range w.c.cfg.Ranks {
		at[r] = w.at[r] + offset
	}
}
