package host

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/handoff"
	"symmem/internal/sys"
)

type registry struct {
	device  *Device
	group   *shm.Group
	cfg     *driver.GroupConfig
	windows map[driver.SegmentKey]*window // guarded by group.Mu
}

func (g *registry) init(d *Device, group *shm.Group, cfg *driver.GroupConfig) {
	g.device, g.group, g.cfg, g.windows = d, group, cfg, map[driver.SegmentKey]*window{}
}

// window holds the segments that all ranks registered under one key, mapped into this process.
type window struct {
	registry *registry
	key      driver.SegmentKey
	bytes    int64
	bases    []unsafe.Pointer // by group rank; for this rank, the segment's own address
	foreign  []*sys.Mapping   // by group rank; nil for this rank
}

// Register makes a window over a segment.
func (g *registry) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	if g.device.capturing.Load() > 0 {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, driver.ErrCapturing)
	}
	own, ok := s.(*segment)
	if !ok {
		return nil, fmt.Errorf("registering segment %d: it belongs to another backend", key.Ordinal)
	}
	if g.find(key) != nil {
		return nil, fmt.Errorf("registering segment %d: it is already registered", key.Ordinal)
	}
	if err := g.group.BeginUse(); err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	defer g.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, g.cfg.Timeout.Get())
	defer cancel()
	own.export(g.handoffKey(key))
	_, err := control.CompareSegments(ctx, g.group.Exchange, g.cfg.Ranks, key, own.Bytes(), nil)
	if err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	w, err := g.mapWindow(ctx, key, own)
	if err := g.commit(ctx, "registration", err); err != nil {
		return nil, errors.Join(fmt.Errorf("registering segment %d: %w", key.Ordinal, err),
			w.unmap())
	}
	g.group.Mu.Lock()
	defer g.group.Mu.Unlock()
	g.windows[key] = w
	return w, nil
}

func (g *registry) find(key driver.SegmentKey) *window {
	g.group.Mu.Lock()
	defer g.group.Mu.Unlock()
	return g.windows[key]
}

func (g *registry) unmapAll() error {
	g.group.Mu.Lock()
	defer g.group.Mu.Unlock()
	var errs []error
	for _, w := range g.windows {
		errs = append(errs, w.unmap())
	}
	return errors.Join(errs...)
}

// handoffKey returns the key under which processes exchange a segment. The key does not depend on
// the group, because all groups map the same memory.
func (g *registry) handoffKey(key driver.SegmentKey) handoff.Key {
	return handoff.Key{Namespace: key.Pool ^ handoff.NamespaceOf("pool"), Number: key.Ordinal}
}

// mapWindow maps the segments of all ranks. If it fails, it also returns an incomplete window,
// which the caller must unmap after it has informed the other ranks.
func (g *registry) mapWindow(
	ctx context.Context, key driver.SegmentKey, own *segment,
) (*window, error) {
	n := g.group.Size()
	w := &window{
		registry: g, key: key, bytes: own.Bytes(),
		bases: make([]unsafe.Pointer, n), foreign: make([]*sys.Mapping, n),
	}
	for r := range w.bases {
		if r == g.cfg.Rank {
			w.bases[r] = own.memory.Base()
			continue
		}
		m, err := g.mapPeer(ctx, r, key, w.bytes)
		if err != nil {
			return w, fmt.Errorf("mapping the segment of rank %d: %w", g.cfg.Ranks[r], err)
		}
		w.foreign[r], w.bases[r] = m, m.Base()
	}
	return w, nil
}

func (g *registry) mapPeer(
	ctx context.Context, r int, key driver.SegmentKey, bytes int64,
) (*sys.Mapping, error) {
	f, err := g.group.Fetch(ctx, r, g.handoffKey(key), "registration")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size, err := sys.FileSize(f); err != nil || size < bytes {
		return nil, errors.Join(err, fmt.Errorf("the file has %d bytes instead of %d", size, bytes))
	}
	return sys.Map(f, 0, bytes)
}

// commit reports to the other ranks whether mapping succeeded on this rank. If it failed on any
// rank, commit returns an error on every rank, so that the operation takes effect on all ranks or
// on none.
func (g *registry) commit(ctx context.Context, doing string, mapErr error) error {
	all, err := g.group.Exchange(ctx, driver.LaneControl, control.EncodeFailure(mapErr))
	if mapErr != nil || err != nil {
		return errors.Join(mapErr, err)
	}
	return control.DecodeFailures(g.cfg.Ranks, all, doing)
}

// Deregister removes the registration on this rank.
func (w *window) Deregister() error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	if w.registry.windows[w.key] != w {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}
	delete(w.registry.windows, w.key)
	return w.unmap()
}

func (w *window) unmap() error {
	if w == nil {
		return nil
	}
	var errs []error
	for r, m := range w.foreign {
		if m != nil {
			errs = append(errs, m.Close())
			w.foreign[r] = nil
		}
	}
	return errors.Join(errs...)
}

// PeerAddresses returns the address of each rank's segment, by group rank.
func (w *window) PeerAddresses() ([]uintptr, error) {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	if w.registry.windows[w.key] != w {
		return nil, driver.ErrClosed
	}
	addresses := make([]uintptr, len(w.bases))
	for r, base := range w.bases {
		addresses[r] = uintptr(base)
	}
	return addresses, nil
}

// addressOn returns the address of rank r's buffer, assuming that its offset in the segment is the
// same as that of this rank's buffer. As in NCCL, the result is wrong if the offsets differ.
func (w *window) addressOn(r int, own uintptr) unsafe.Pointer {
	return unsafe.Add(w.bases[r], own-uintptr(w.bases[w.registry.cfg.Rank]))
}
