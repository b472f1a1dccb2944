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

var _ driver.SuspendableWindow = (*window)(nil)

// window maps the segments that all ranks registered under one key. The buffer at offset 4096 of
// rank 1's segment is at bases[1]+4096.
type window struct {
	registry     *registry
	key          driver.SegmentKey
	bytes        int64            // size of each segment
	bases        []unsafe.Pointer // addresses of the segments in this process, by group rank
	peerMappings []*sys.Mapping
}

// registry holds the windows of a communicator.
type registry struct {
	device  *Device
	group   *shm.Group
	cfg     *driver.GroupConfig
	windows map[driver.SegmentKey]*window // guarded by group.Mu
}

// Register maps the segments that the peers register under the key. All ranks call it together.
func (reg *registry) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := reg.newWindow(ctx, key, s)
	if err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}

	return w, nil
}

func (reg *registry) newWindow(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (*window, error) {
	if reg.device.capturingCount.Load() > 0 {
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
	ownSegment.exportFile(fileKey(key)) // peers request the file after CompareSegments
	_, err := control.CompareSegments(ctx, reg.group.Exchange, reg.cfg.Ranks, key,
		ownSegment.Bytes(), nil)
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

// fileKey returns the key under which peers request a segment's file.
func fileKey(key driver.SegmentKey) handoff.Key {
	return handoff.Key{Namespace: key.Pool ^ handoff.NamespaceOf("pool"), Number: key.Ordinal}
}

// mapWindow maps the peers' segments. With an error, it returns the segments mapped so far.
func (reg *registry) mapWindow(
	ctx context.Context, key driver.SegmentKey, ownSegment *segment,
) (*window, error) {
	w := &window{registry: reg, key: key, bytes: ownSegment.Bytes()}
	w.bases = make([]unsafe.Pointer, reg.group.Size())
	for rank := range w.bases {
		if rank == reg.cfg.Rank {
			w.bases[rank] = ownSegment.memory.Base()
			continue
		}

		m, err := reg.mapPeer(ctx, rank, key, w.bytes)
		if err != nil {
			return w, fmt.Errorf("mapping the segment of rank %d: %w", reg.cfg.Ranks[rank], err)
		}

		w.peerMappings = append(w.peerMappings, m)
		w.bases[rank] = m.Base()
	}

	return w, nil
}

func (reg *registry) mapPeer(
	ctx context.Context, rank int, key driver.SegmentKey, bytes int64,
) (*sys.Mapping, error) {
	f, err := reg.group.Fetch(ctx, rank, fileKey(key), "registration")
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

// agreeOnMapping exchanges mapErr with all ranks. It returns mapErr or, if mapErr is nil, the error
// of another rank.
func (reg *registry) agreeOnMapping(ctx context.Context, operation string, mapErr error) error {
	_, isTimeout := errors.AsType[*driver.TimeoutError](mapErr)
	if isTimeout {
		return reg.group.Fail(mapErr) // no time is left for an exchange
	}

	all, err := reg.group.Exchange(ctx, driver.LaneControl, control.EncodeFailure(mapErr))
	if mapErr != nil || err != nil {
		return errors.Join(mapErr, err)
	}

	return control.DecodeFailures(reg.cfg.Ranks, all, operation)
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

func (w *window) unmap() error {
	var errs []error
	for _, m := range w.peerMappings {
		errs = append(errs, m.Close())
	}

	w.peerMappings = nil
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

func (w *window) PrepareSuspend() error { return nil }

// Suspend makes this rank's accesses to the peers' segments fail.
func (w *window) Suspend() error {
	const allowAccess = false
	return w.protectPeers(allowAccess)
}

// Resume makes the peers' segments accessible again. All ranks call it together. An error on any
// rank makes the group fail.
func (w *window) Resume(ctx context.Context) error {
	reg := w.registry
	if err := reg.group.BeginUse(); err != nil {
		return fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err)
	}

	defer reg.group.EndUse()
	ctx, cancel := control.WithDefaultTimeout(ctx, reg.cfg.Timeout.Get())
	defer cancel()
	const allowAccess = true
	accessErr := w.protectPeers(allowAccess)
	if err := reg.agreeOnMapping(ctx, "resuming a pool", accessErr); err != nil {
		return reg.group.Fail(fmt.Errorf("resuming segment %d: %w", w.key.Ordinal, err))
	}

	return nil
}

func (w *window) protectPeers(allowAccess bool) error {
	w.registry.group.Mu.Lock()
	defer w.registry.group.Mu.Unlock()
	var errs []error
	for _, m := range w.peerMappings {
		errs = append(errs, m.Protect(allowAccess))
	}

	return errors.Join(errs...)
}

// contains reports whether a range of bytes lies in the segments.
func (w *window) contains(offset, bytes uint64) bool {
	size := uint64(w.bytes)
	return offset <= size && bytes <= size-offset
}

// addressOn returns the address on a group rank that corresponds to an address on this rank.
func (w *window) addressOn(rank int, ownAddress uintptr) unsafe.Pointer {
	ownBase := uintptr(w.bases[w.registry.cfg.Rank])
	return unsafe.Add(w.bases[rank], ownAddress-ownBase)
}
