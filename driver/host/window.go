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

// registry holds the windows of a communicator.
type registry struct {
	device  *Device
	group   *shm.Group
	cfg     *driver.GroupConfig
	windows map[driver.SegmentKey]*window // guarded by group.Mu
}

func (reg *registry) setGroup(d *Device, group *shm.Group, cfg *driver.GroupConfig) {
	reg.device, reg.group, reg.cfg, reg.windows = d, group, cfg, map[driver.SegmentKey]*window{}
}

// window maps the segments that all ranks registered under one key.
type window struct {
	registry     *registry
	key          driver.SegmentKey
	bytes        int64
	bases        []unsafe.Pointer // by group rank
	peerMappings []*sys.Mapping   // by group rank; nil for this rank
}

func (reg *registry) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	if reg.device.captureCount.Load() > 0 {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, driver.ErrCapturing)
	}
	ownSegment, ok := s.(*segment)
	if !ok {
		return nil, fmt.Errorf("registering segment %d: it belongs to another backend", key.Ordinal)
	}
	if reg.findWindow(key) != nil {
		return nil, fmt.Errorf("registering segment %d: it is already registered", key.Ordinal)
	}
	if err := reg.group.BeginUse(); err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	defer reg.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, reg.cfg.Timeout.Get())
	defer cancel()
	ownSegment.exportFile(reg.fileKey(key))
	_, err := control.CompareSegments(ctx, reg.group.Exchange, reg.cfg.Ranks, key,
		ownSegment.Bytes(), nil)
	if err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	w, err := reg.mapWindow(ctx, key, ownSegment)
	if err := reg.agreeOnMapping(ctx, "registration", err); err != nil {
		return nil, errors.Join(fmt.Errorf("registering segment %d: %w", key.Ordinal, err),
			w.unmap())
	}
	reg.group.Mu.Lock()
	defer reg.group.Mu.Unlock()
	reg.windows[key] = w
	return w, nil
}

func (reg *registry) findWindow(key driver.SegmentKey) *window {
	reg.group.Mu.Lock()
	defer reg.group.Mu.Unlock()
	return reg.windows[key]
}

func (reg *registry) unmapAll() error {
	reg.group.Mu.Lock()
	defer reg.group.Mu.Unlock()
	var errs []error
	for _, w := range reg.windows {
		errs = append(errs, w.unmap())
	}
	return errors.Join(errs...)
}

// fileKey returns the key for the hand-off of a segment's file. It does not depend on the group,
// because all groups map the same memory.
func (reg *registry) fileKey(key driver.SegmentKey) handoff.Key {
	return handoff.Key{Namespace: key.Pool ^ handoff.NamespaceOf("pool"), Number: key.Ordinal}
}

// mapWindow maps the segments of all other ranks. After an error, it returns an incomplete window,
// which the caller must unmap after it has informed the other ranks.
func (reg *registry) mapWindow(
	ctx context.Context, key driver.SegmentKey, ownSegment *segment,
) (*window, error) {
	n := reg.group.Size()
	w := &window{
		registry: reg, key: key, bytes: ownSegment.Bytes(),
		bases: make([]unsafe.Pointer, n), peerMappings: make([]*sys.Mapping, n),
	}
	for r := range w.bases {
		if r == reg.cfg.Rank {
			w.bases[r] = ownSegment.memory.Base()
			continue
		}
		m, err := reg.mapPeer(ctx, r, key, w.bytes)
		if err != nil {
			return w, fmt.Errorf("mapping the segment of rank %d: %w", reg.cfg.Ranks[r], err)
		}
		w.peerMappings[r], w.bases[r] = m, m.Base()
	}
	return w, nil
}

func (reg *registry) mapPeer(
	ctx context.Context, rank int, key driver.SegmentKey, bytes int64,
) (*sys.Mapping, error) {
	f, err := reg.group.Fetch(ctx, rank, reg.fileKey(key), "registration")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size, err := sys.FileSize(f); err != nil || size < bytes {
		return nil, errors.Join(err, fmt.Errorf("the file has %d bytes instead of %d", size, bytes))
	}
	return sys.Map(f, 0, bytes)
}

// agreeOnMapping exchanges the ranks' results of a mapping. It returns an error on every rank if
// mapping failed on any rank.
func (reg *registry) agreeOnMapping(ctx context.Context, operation string, mapErr error) error {
	if errors.As(mapErr, new(*driver.TimeoutError)) {
		return reg.group.Fail(mapErr) // no time is left for an exchange
	}
	all, err := reg.group.Exchange(ctx, driver.LaneControl, control.EncodeFailure(mapErr))
	if mapErr != nil || err != nil {
		return errors.Join(mapErr, err)
	}
	return control.DecodeFailures(reg.cfg.Ranks, all, operation)
}

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
	for r, m := range w.peerMappings {
		if m != nil {
			errs = append(errs, m.Close())
			w.peerMappings[r] = nil
		}
	}
	return errors.Join(errs...)
}

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

// addressOn returns the address in this process of the buffer of rank r that corresponds to this
// rank's buffer at ownAddress. Both buffers have the same offset in their segments.
func (w *window) addressOn(r int, ownAddress uintptr) unsafe.Pointer {
	return unsafe.Add(w.bases[r], ownAddress-uintptr(w.bases[w.registry.cfg.Rank]))
}
