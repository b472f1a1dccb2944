package host

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/sys"
)

// window is one segment registered with one communicator: the segments of all ranks under one
// key, mapped here.
type window struct {
	c       *communicator
	key     driver.SegmentKey
	bytes   int64
	bases   []unsafe.Pointer // by group rank; this rank's own is the segment itself
	foreign []*sys.Mapping   // by group rank; nil at this rank's own place
}

// Register makes a window over a segment.
func (c *communicator) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	if c.device.capturing.Load() > 0 {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, driver.ErrCapturing)
	}
	own, ok := s.(*segment)
	if !ok {
		return nil, fmt.Errorf("registering segment %d: it is of another backend", key.Ordinal)
	}
	if c.registered(key) {
		return nil, fmt.Errorf("registering segment %d: it is registered already", key.Ordinal)
	}
	if err := c.BeginUse(); err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	defer c.EndUse()
	ctx, cancel := c.device.machine.Bounded(ctx)
	defer cancel()
	own.export(c.handoffKey(key))
	_, err := control.CompareSegments(ctx, c.Exchange, c.cfg.Ranks, key, own.Bytes(), nil)
	if err != nil {
		return nil, fmt.Errorf("registering segment %d: %w", key.Ordinal, err)
	}
	w, err := c.mapWindow(ctx, key, own)
	if err := c.commit(ctx, err); err != nil {
		return nil, errors.Join(fmt.Errorf("registering segment %d: %w", key.Ordinal, err),
			w.unmap())
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.windows[key] = w
	return w, nil
}

func (c *communicator) registered(key driver.SegmentKey) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.windows[key] != nil
}

// handoffKey names a segment between processes. It is the same in all groups: the memory is.
func (c *communicator) handoffKey(key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: key.Pool ^ handoff.Space("pool"), Number: key.Ordinal}
}

// mapWindow maps the segments of all ranks. The window is returned also on an error, to be
// unmapped once the others know.
func (c *communicator) mapWindow(
	ctx context.Context, key driver.SegmentKey, own *segment,
) (*window, error) {
	n := c.Size()
	w := &window{
		c: c, key: key, bytes: own.Bytes(),
		bases: make([]unsafe.Pointer, n), foreign: make([]*sys.Mapping, n),
	}
	for r := range w.bases {
		if r == c.cfg.Rank {
			w.bases[r] = own.memory.Base()
			continue
		}
		m, err := c.mapPeer(ctx, r, key, w.bytes)
		if err != nil {
			return w, fmt.Errorf("mapping the segment of rank %d: %w", c.cfg.Ranks[r], err)
		}
		w.foreign[r], w.bases[r] = m, m.Base()
	}
	return w, nil
}

func (c *communicator) mapPeer(
	ctx context.Context, r int, key driver.SegmentKey, bytes int64,
) (*sys.Mapping, error) {
	f, err := c.Fetch(ctx, r, c.handoffKey(key), "registration")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size, err := sys.FileSize(f); err != nil || size < bytes {
		return nil, errors.Join(err, fmt.Errorf("it has %d bytes instead of %d", size, bytes))
	}
	return sys.Map(f, 0, bytes)
}

// commit makes registration all or nothing: the ranks exchange whether they have mapped all
// segments.
func (c *communicator) commit(ctx context.Context, mapErr error) error {
	all, err := c.Exchange(ctx, driver.LaneControl, control.EncodeFailure(mapErr))
	if mapErr != nil || err != nil {
		return errors.Join(mapErr, err)
	}
	return control.DecodeFailures(c.cfg.Ranks, all, "registration")
}

// Deregister takes the registration back on this rank.
func (w *window) Deregister() error {
	w.c.Mu.Lock()
	defer w.c.Mu.Unlock()
	if w.c.windows[w.key] != w {
		return fmt.Errorf("deregistering segment %d: %w", w.key.Ordinal, driver.ErrClosed)
	}
	delete(w.c.windows, w.key)
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

// at returns where a peer's buffer lies: the peer's window base plus this rank's own offset. That
// is how NCCL finds it too, and why a buffer that lies elsewhere on the peer gives wrong sums.
func (w *window) at(r int, own uintptr) unsafe.Pointer {
	return unsafe.Add(w.bases[r], own-uintptr(w.bases[w.c.cfg.Rank]))
}
