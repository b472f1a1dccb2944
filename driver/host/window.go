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

// window maps the blocks of shared memory, called segments, that all ranks registered under the
// same key. If this rank's buffer is at offset 4096 of its segment, rank 1's buffer is at
// bases[1]+4096.
type window struct {
	registry     *registry
	key          driver.SegmentKey
	bytes        int64            // size of each segment
	bases        []unsafe.Pointer // where this process has mapped the segments, by group rank
	peerMappings []*sys.Mapping   // by group rank; the entry is nil for this rank and after unmap
}

// registry holds the windows of a communicator.
type registry struct {
	device  *Device
	group   *shm.Group
	cfg     *driver.GroupConfig
	windows map[driver.SegmentKey]*window // guarded by group.Mu
}

func (reg *registry) setGroup(d *Device, group *shm.Group, cfg *driver.GroupConfig) {
	reg.device = d
	reg.group = group
	reg.cfg = cfg
	reg.windows = map[driver.SegmentKey]*window{}
}

// Register maps the peers' segments with the same key. All ranks call it together.
func (reg *registry) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := reg.register(ctx, key, s)
	if err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}

	return w, nil
}

func (reg *registry) register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	if reg.device.captureCount.Load() > 0 {
		return nil, driver.ErrCapturing
	}

	ownSegment, ok := s.(*segment)
	if !ok {
		return nil, errors.New("it belongs to another backend")
	}

	if reg.findWindow(key) != nil {
		return nil, errors.New("it is already registered")
	}

	if err := reg.group.BeginUse(); err != nil {
		return nil, err
	}

	defer reg.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, reg.cfg.Timeout.Get())
	defer cancel()
	ownSegment.exportFile(reg.fileKey(key)) // peers request the file after CompareSegments
	var noExtraData []byte
	_, err := control.CompareSegments(ctx, reg.group.Exchange, reg.cfg.Ranks, key,
		ownSegment.Bytes(), noExtraData)
	if err != nil {
		return nil, err
	}

	w, mapErr := reg.mapWindow(ctx, key, ownSegment)
	if err := reg.agreeOnMapping(ctx, "registration", mapErr); err != nil {
		unmapErr := w.unmap()
		return nil, errors.Join(err, unmapErr)
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

// fileKey returns the key under which peers request a segment's file. It is the same in all groups.
func (reg *registry) fileKey(key driver.SegmentKey) handoff.Key {
	return handoff.Key{Namespace: key.Pool ^ handoff.NamespaceOf("pool"), Number: key.Ordinal}
}

// mapWindow maps the peers' segments. After an error, it returns a partial window. The caller must
// then report the error to the peers, which wait for the outcome, and unmap the window.
func (reg *registry) mapWindow(
	ctx context.Context, key driver.SegmentKey, ownSegment *segment,
) (*window, error) {
	size := reg.group.Size()
	w := &window{
		registry: reg, key: key, bytes: ownSegment.Bytes(),
		bases: make([]unsafe.Pointer, size), peerMappings: make([]*sys.Mapping, size),
	}
	for rank := range w.bases {
		if rank == reg.cfg.Rank {
			w.bases[rank] = ownSegment.memory.Base()
			continue
		}

		m, err := reg.mapPeer(ctx, rank, key, w.bytes)
		if err != nil {
			return w, fmt.Errorf("mapping the segment of rank %d: %w", reg.cfg.Ranks[rank], err)
		}

		w.peerMappings[rank] = m
		w.bases[rank] = m.Base()
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
	defer f.Close() // the mapping stays
	size, err := sys.FileSize(f)
	if err != nil {
		return nil, err
	}

	if size < bytes { // an access past the end would kill this process
		return nil, fmt.Errorf("the file has %d bytes instead of %d", size, bytes)
	}

	const offset = 0
	return sys.Map(f, offset, bytes)
}

// agreeOnMapping returns an error on every rank if mapErr is set on any rank. In errors about other
// ranks, operation describes the mapping.
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

// Deregister unmaps the peers' segments.
func (w *window) Deregister() error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	if !w.isOpen() {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}

	delete(w.registry.windows, w.key)
	return w.unmap()
}

// The caller must hold group.Mu.
func (w *window) isOpen() bool { return w.registry.windows[w.key] == w }

func (reg *registry) unmapAll() error {
	reg.group.Mu.Lock()
	defer reg.group.Mu.Unlock()
	var errs []error
	for _, w := range reg.windows {
		errs = append(errs, w.unmap())
	}

	return errors.Join(errs...)
}

// unmap accepts the partial window of a failed mapWindow.
func (w *window) unmap() error {
	var errs []error
	for rank, m := range w.peerMappings {
		if m != nil {
			errs = append(errs, m.Close())
			w.peerMappings[rank] = nil
		}
	}

	return errors.Join(errs...)
}

// PeerAddresses returns the addresses of all ranks' segments in this process, by group rank.
func (w *window) PeerAddresses() ([]uintptr, error) {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	if !w.isOpen() {
		return nil, driver.ErrClosed
	}

	addresses := make([]uintptr, len(w.bases))
	for rank, base := range w.bases {
		addresses[rank] = uintptr(base)
	}

	return addresses, nil
}

// contains reports whether a range of bytes lies in the segments.
func (w *window) contains(offset, bytes uint64) bool {
	size := uint64(w.bytes)
	return offset <= size && bytes <= size-offset
}

// addressOn translates an address in this rank's segment to the segment of a group rank.
func (w *window) addressOn(rank int, ownAddress uintptr) unsafe.Pointer {
	ownBase := uintptr(w.bases[w.registry.cfg.Rank])
	return unsafe.Add(w.bases[rank], ownAddress-ownBase)
}
