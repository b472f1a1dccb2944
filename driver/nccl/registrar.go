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

// registrar registers segments of memory with a group, which makes them windows.
type registrar struct {
	gpu     *gpu.GPU
	memory  *memory.Memory
	streams *stream.Streams
	cfg     *driver.GroupConfig
	plane   control.Plane
	mu      *groupLock
	busy    *stream.BusyStreams
	comm    *ncclComm
	direct  *directPath
	stages  *stages

	// hasWindowGraphs reports whether a graph that may still be launched contains window kernels
	// (NCCL kernels that access windows). It is called with mu held.
	hasWindowGraphs func() bool

	windowSupport           windowSupport
	mustUseWindows          atomic.Bool // even if the group has a direct path
	programHasPeerAddresses atomic.Bool

	windows map[driver.SegmentKey]*window // guarded by mu
}

func (r *registrar) register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	w, err := r.registerOnce(ctx, key, s)
	if err == nil {
		return w, nil
	}

	err = fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	if w != nil {
		// NCCL's communicator may be unusable, and other ranks may wait in it forever.
		err = r.plane.Fail(err)
	}

	return nil, err
}

// registerOnce registers a segment. If it returns both a window and an error, the communicator may
// be unusable.
func (r *registrar) registerOnce(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	segment, ok := s.(*memory.Segment)
	switch {
	case r.streams.Capturing.Load() > 0:
		return nil, driver.ErrCapturing
	case !ok || !r.memory.Owns(segment):
		return nil, errors.New("the segment belongs to another device")
	case r.isRegistered(key):
		return nil, errors.New("the segment is already registered")
	}

	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	shared, shareErr := r.share(key, segment)
	defer shared.Withdraw()
	// NCCL matches windows only by their order. If ranks registered different segments, sums would
	// be wrong or ranks would hang.
	sharedSegments, err := control.CompareSegments(ctx, r.plane.Exchange, r.cfg.Ranks, key,
		segment.Bytes(), shared.Encode())
	if err != nil {
		return nil, err
	}

	w := &window{registrar: r, key: key, segment: segment}
	if err := r.registerWithNCCL(ctx, w); err != nil {
		return w, err
	}

	mapErr := w.mapPeers(ctx, sharedSegments)
	w.noteMapResult(cmp.Or(shareErr, mapErr))
	if err := r.exchangeResults(ctx, w); err != nil {
		return nil, err
	}

	return w, nil
}

func (r *registrar) isRegistered(key driver.SegmentKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.windows[key] != nil
}

func (r *registrar) isEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.windows) == 0
}

// registerAllWithNCCL also makes later calls of register use NCCL. Suspended windows are registered
// when they resume.
func (r *registrar) registerAllWithNCCL(ctx context.Context) error {
	if r.streams.Capturing.Load() > 0 && !r.isEmpty() {
		return driver.ErrCapturing
	}

	ctx, cancel := control.WithDefaultTimeout(ctx, r.cfg.Timeout.Get())
	defer cancel()
	if r.mustUseWindows.Swap(true) {
		return nil
	}

	for _, w := range r.mappedWindows() {
		err := r.registerWithNCCL(ctx, w)
		if err == nil {
			err = r.exchangeResults(ctx, w)
		}

		if err != nil {
			return r.plane.Fail(fmt.Errorf("registering segment %d with NCCL: %w", w.key.Ordinal, err))
		}
	}

	return nil
}

// mappedWindows marks suspended windows instead, so that Resume registers them with NCCL.
func (r *registrar) mappedWindows() (mapped []*window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range slices.SortedFunc(maps.Values(r.windows), compareWindowKeys) {
		if w.suspension.isActive {
			w.suspension.mustRegister = true
		} else {
			mapped = append(mapped, w)
		}
	}

	return mapped
}

// registerWithNCCL registers the window if the group uses NCCL's windows. The ranks must have
// agreed on the registration, because NCCL waits for all ranks without a deadline. If a rank is
// lost in the meantime, the teardown makes NCCL's call return.
func (r *registrar) registerWithNCCL(ctx context.Context, w *window) error {
	if r.windowSupport.noWindowsReason != "" || r.mustSkipWindows() {
		return r.addUnregistered(w)
	}

	begin := time.Now()
	stop := context.AfterFunc(ctx, func() {
		_ = r.plane.Fail(waitError(ctx, "registering a window with NCCL in group "+r.cfg.Name(), begin))
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy.WakeWatcher()
	if err := r.plane.Cause(); err != nil {
		return err
	}

	// Add the window first, because the teardown looks for it if another rank fails.
	r.windows[w.key] = w
	var err error
	w.handle, err = r.comm.register(w.segment)
	if cause := r.plane.Cause(); err != nil && cause != nil {
		return cause
	}

	return err
}

func (r *registrar) addUnregistered(w *window) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows[w.key] = w
	return r.plane.Cause()
}

// exchangeResults waits until NCCL has registered the window on all ranks. If some rank has no
// window, all ranks stop using windows.
func (r *registrar) exchangeResults(ctx context.Context, w *window) error {
	own := registerResult{
		NoWindow:  w.handle == 0 && !r.mustSkipWindows(),
		NotMapped: !w.isMappedHere,
		Reason:    w.mapErrorText,
	}
	if own.NoWindow && r.windowSupport.noWindowsReason == "" {
		defer r.startLoneRankTimer(ctx)()
	}

	encoded, err := json.Marshal(own)
	if err != nil {
		return err
	}

	all, err := r.plane.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return err
	}

	w.isMappedEverywhere, w.notMappedReason = true, ""
	for rank, encoded := range all {
		var result registerResult
		if err := json.Unmarshal(encoded, &result); err != nil {
			return fmt.Errorf("decoding the result of rank %d: %w", r.cfg.Ranks[rank], err)
		}

		if result.NoWindow {
			r.disableWindows(r.cfg.Ranks[rank])
		}

		w.mergeResult(r.cfg.Ranks[rank], &result)
	}

	return nil
}

const loneRankTimeout = 5 * time.Second

// startLoneRankTimer makes the group fail after a while if only this rank has no window. The other
// ranks would otherwise wait in NCCL forever. The caller must call stop once they have returned.
func (r *registrar) startLoneRankTimer(ctx context.Context) (stop func()) {
	limit := loneRankTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}

	timer := time.AfterFunc(limit, func() {
		_ = r.plane.Fail(fmt.Errorf("NCCL has registered no window on rank %d, but other ranks wait for "+
			"it in NCCL: the ranks have different configurations (compare the output of symmem doctor)",
			r.cfg.Ranks[r.cfg.Rank]))
	})
	return func() { timer.Stop() }
}

func (r *registrar) disableWindows(rank int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, version := r.comm.library.Version()
	r.windowSupport.disable(rank, version)
}

func (r *registrar) share(
	key driver.SegmentKey, s *memory.Segment,
) (shared memory.Shared, err error) {
	if r.direct.unavailableReason != "" {
		return memory.Shared{}, nil
	}

	err = r.gpu.Do(func() error {
		handle, err := r.gpu.CUDA.Retain(s.Address())
		if err != nil {
			return err
		}
		defer r.gpu.Release(handle)
		shared, err = r.direct.sharing.Share(segmentShareKey(r.cfg, key), handle)
		return err
	})
	if err != nil {
		return memory.Shared{}, fmt.Errorf("exporting a segment to peers: %w", err)
	}

	return shared, nil
}

// errNotShared means that another rank could not share its segment.
var errNotShared = errors.New("a rank has shared no memory")

func (r *registrar) mustSkipWindows() bool {
	return r.direct.unavailableReason == "" && !r.mustUseWindows.Load()
}

var errNoWindows = fmt.Errorf("symmem has registered no windows with NCCL, because the group's "+
	"tuning table does not use them: set the group's path to window to register them: %w",
	driver.ErrUnsupported)

func (r *registrar) support() windowSupport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.windowSupport
}

// deregisterAll keeps windows that graphs of other libraries use.
func (r *registrar) deregisterAll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gpu.Do(func() error {
		var errs []error
		for _, w := range slices.SortedFunc(maps.Values(r.windows), compareWindowKeys) {
			if !w.deferIfUsed() {
				errs = append(errs, w.deregisterFromNCCL())
			}
		}

		return errors.Join(errs...)
	})
}

// unmapPeers requires r.mu.
func (r *registrar) unmapPeers() error {
	var errs []error
	for _, w := range r.windows {
		errs = append(errs, w.unmapPeers())
	}

	return errors.Join(errs...)
}

type registerResult struct {
	NoWindow  bool `json:"no_window,omitempty"`
	NotMapped bool `json:"no_peers,omitempty"`
	// Reason is empty if the rank could map all segments that the other ranks have shared.
	Reason string `json:"why,omitempty"`
}
