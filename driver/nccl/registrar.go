package nccl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// registrar registers segments with a group, and keeps its windows.
type registrar struct {
	gpu     *gpu.GPU
	memory  *memory.Memory
	streams *stream.Streams
	timeout time.Duration
	cfg     *driver.GroupConfig
	plane   control.Plane
	mu      *groupLock
	busy    *stream.BusyStreams
	comm    *ncclComm
	direct  *directPath
	stages  *stages

	supported support
	// useWindows reports whether NCCL makes windows, although kernels of our own serve the group.
	useWindows atomic.Bool

	windows map[driver.SegmentKey]*window // guarded by mu
}

// register makes a window over a segment.
func (r *registrar) register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := r.registerOnce(ctx, key, s)
	if err == nil {
		return w, nil
	}
	err = fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	if w != nil {
		// NCCL's communicator may be unusable, and the other ranks may be waiting in it forever.
		err = r.plane.Fail(err)
	}
	return nil, err
}

// registerOnce registers a segment. It returns both a window and an error if the call of NCCL has
// failed: then the communicator may be unusable.
func (r *registrar) registerOnce(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	own, ok := s.(*memory.Segment)
	switch {
	case r.streams.Capturing.Load() > 0:
		return nil, driver.ErrCapturing
	case !ok || !r.memory.Own(own):
		return nil, errors.New("it is of another device")
	case r.registered(key):
		return nil, errors.New("it is registered already")
	}
	ctx, cancel := control.Bounded(ctx, r.timeout)
	defer cancel()
	shared, trouble := r.share(key, own)
	defer shared.Withdraw()
	// NCCL pairs windows by their order alone, and a difference gives wrong sums or a hang. Each rank
	// also sends how others can map its segment.
	allShared, err := control.CompareSegments(ctx, r.plane.Exchange, r.cfg.Ranks, key, own.Bytes(),
		shared.Encode())
	if err != nil {
		return nil, err
	}
	w := &window{of: r, key: key, segment: own}
	if err := r.make(ctx, w); err != nil {
		return w, err
	}
	err = cmp.Or(trouble, w.mapPeers(ctx, allShared))
	w.mapped = err == nil
	if err != nil && !errors.Is(err, errNotShared) {
		w.mapError = err.Error()
	}
	if err := r.commit(ctx, w); err != nil {
		return nil, err
	}
	return w, nil
}

func (r *registrar) registered(key driver.SegmentKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.windows[key] != nil
}

// empty reports whether there are no windows.
func (r *registrar) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.windows) == 0
}

// useAll has NCCL make the windows of a group that could do without them so far.
func (r *registrar) useAll(ctx context.Context) error {
	if r.streams.Capturing.Load() > 0 && !r.empty() {
		return driver.ErrCapturing
	}
	ctx, cancel := control.Bounded(ctx, r.timeout)
	defer cancel()
	if r.useWindows.Swap(true) {
		return nil
	}
	r.mu.Lock()
	windows := slices.SortedFunc(maps.Values(r.windows), inOrder)
	r.mu.Unlock()
	for _, w := range windows {
		err := r.make(ctx, w)
		if err == nil {
			err = r.commit(ctx, w)
		}
		if err != nil {
			return r.plane.Fail(fmt.Errorf("making a window of segment %d: %w", w.key.Ordinal, err))
		}
	}
	return nil
}

// make has NCCL make the window. All ranks are here, and NCCL waits for all of them without a
// deadline: the watcher ends the communicator, and with it the call, if one is lost meanwhile.
func (r *registrar) make(ctx context.Context, w *window) error {
	if r.supported.none != "" || r.skipsWindows() {
		return r.keep(w)
	}
	begin := time.Now()
	stop := context.AfterFunc(ctx, func() {
		_ = r.plane.Fail(overdue(ctx, "registering a window with NCCL in group "+r.cfg.Name(), begin))
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy.WakeWatcher()
	if err := r.plane.Cause(); err != nil {
		return err
	}
	// Known from here on, so that it is given back with the communicator if another rank fails.
	r.windows[w.key] = w
	var err error
	w.handle, err = r.comm.register(w.segment)
	if cause := r.plane.Cause(); err != nil && cause != nil {
		return cause
	}
	return err
}

// keep remembers a window that NCCL does not know.
func (r *registrar) keep(w *window) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows[w.key] = w
	return r.plane.Cause()
}

// commit makes registration all or nothing: it waits until NCCL has made the window everywhere.
// If it has made none on some rank, no rank uses windows.
func (r *registrar) commit(ctx context.Context, w *window) error {
	mine := registerResult{
		NoWindow: w.handle == 0 && !r.skipsWindows(), NotMapped: !w.mapped, Why: w.mapError,
	}
	if mine.NoWindow && r.supported.none == "" {
		defer r.failIfAlone(ctx)()
	}
	encoded, err := json.Marshal(mine)
	if err != nil {
		return err
	}
	all, err := r.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return err
	}
	w.mappedByAll, w.whyNotMapped = true, ""
	for rank, encoded := range all {
		var theirs registerResult
		if err := json.Unmarshal(encoded, &theirs); err != nil {
			return fmt.Errorf("reading what rank %d has made: %w", r.cfg.Ranks[rank], err)
		}
		if theirs.NoWindow {
			r.withoutWindows(r.cfg.Ranks[rank])
		}
		w.merge(r.cfg.Ranks[rank], &theirs)
	}
	return nil
}

// aloneTimeout is how long the other ranks may need for the call of NCCL that returned here without
// a window. They need no time either, unless NCCL makes windows there.
const aloneTimeout = 5 * time.Second

// failIfAlone fails the group if this rank stays alone without a window: NCCL has returned here
// without meeting the others, and they wait in it for this one, forever.
func (r *registrar) failIfAlone(ctx context.Context) (met func()) {
	wait := aloneTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	alone := time.AfterFunc(wait, func() {
		_ = r.plane.Fail(fmt.Errorf("NCCL made no window on rank %d, and other ranks wait in it "+
			"for this one: they are set up differently (symmem doctor)",
			r.cfg.Ranks[r.cfg.Rank]))
	})
	return func() { alone.Stop() }
}

// withoutWindows notes that NCCL has no window kernels for this group.
func (r *registrar) withoutWindows(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.supported.none == "" {
		_, text := r.comm.library.Version()
		r.supported.none = fmt.Sprintf("NCCL %s made no window on rank %d: it has no window kernels for "+
			"this group (symmem doctor explains why)", text, rank)
	}
}

// share offers a segment to the other ranks of the group, if kernels of our own serve it.
func (r *registrar) share(
	key driver.SegmentKey, s *memory.Segment,
) (shared memory.Shared, err error) {
	if r.direct.unavailable != "" {
		return memory.Shared{}, nil
	}
	err = r.gpu.Do(func() error {
		handle, err := r.gpu.CUDA.Retain(s.Address())
		if err != nil {
			return err
		}
		defer r.gpu.Release(handle)
		shared, err = r.direct.sharing.Share(peersKey(r.cfg, key), handle)
		return err
	})
	if err != nil {
		return memory.Shared{}, fmt.Errorf("offering a segment to peers: %w", err)
	}
	return shared, nil
}

// errNotShared is why a rank cannot map the segment of one that could not share it.
var errNotShared = errors.New("a rank shares nothing")

// skipsWindows reports whether NCCL makes no windows, since kernels of our own serve the group.
func (r *registrar) skipsWindows() bool {
	return r.direct.unavailable == "" && !r.useWindows.Load()
}

// support returns the calls for which NCCL has window kernels.
func (r *registrar) support() support {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.supported
}

// deregisterAll takes back the windows that no graph of another library uses.
func (r *registrar) deregisterAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gpu.Do(func() error {
		var errs []error
		for _, w := range slices.SortedFunc(maps.Values(r.windows), inOrder) {
			if !w.deferDeregister() {
				errs = append(errs, w.deregister())
			}
		}
		return errors.Join(errs...)
	})
}

// unmapPeers gives back the mappings of other ranks' segments under all windows. r.mu is held.
func (r *registrar) unmapPeers() error {
	var errs []error
	for _, w := range r.windows {
		errs = append(errs, w.unmapPeers())
	}
	return errors.Join(errs...)
}

// registerResult is sent to all ranks at the end of a registration.
type registerResult struct {
	// NoWindow reports whether NCCL has made none.
	NoWindow bool `json:"no_window,omitempty"`
	// NotMapped reports whether the rank has not mapped the segments of all others, and Why what kept
	// it from that, unless it was another rank.
	NotMapped bool   `json:"no_peers,omitempty"`
	Why       string `json:"why,omitempty"`
}
