package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/handoff"
)

// peers are the segments of the other ranks under a window, as this rank has them mapped: for
// kernels of our own, which need no window of NCCL's.
type peers struct {
	// at are the segments by group rank; this rank's own is where it always is.
	at [kernels.MaxRanks]uintptr
	// reached tells that every rank has mapped the segments of all. It is settled when the
	// window is made.
	reached bool

	parting sync.Mutex // held while the mappings are given back
}

func peersKey(c *communicator, key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: handoff.Space(fmt.Sprintf("segment/%s/%d/%d/%d", c.cfg.ID, key.Pool,
		key.Ordinal, key.Generation))}
}

// lendSegment offers a segment to the other ranks of the group.
func (c *communicator) lendSegment(key driver.SegmentKey, s *segment) (lent loan, err error) {
	if c.direct.none != "" {
		return loan{}, nil
	}
	d := c.device
	err = d.do(func() error {
		handle, err := d.cuda.Retain(s.Address())
		if err != nil {
			return err
		}
		defer d.release(handle)
		lent, err = c.lend(peersKey(c, key), handle)
		return err
	})
	if err != nil {
		return loan{}, fmt.Errorf("offering a segment to peers: %w", err)
	}
	return lent, nil
}

// reach maps the segments of the other ranks, whose fabric handles are given by group rank. What
// could not be mapped is left to other paths.
func (w *window) reach(ctx context.Context, fabric [][]byte) error {
	c := w.c
	if c.direct.none != "" {
		return driver.ErrUnsupported
	}
	for r, rank := range c.cfg.Ranks {
		if r == c.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := c.borrow(ctx, rank, peersKey(c, w.key), fabric[r], w.segment.bytes)
		if err != nil {
			return errors.Join(err, w.part())
		}
		w.at[r] = at
	}
	return nil
}

// part gives the mappings of the other ranks' segments back.
func (w *window) part() error {
	w.parting.Lock()
	defer w.parting.Unlock()
	if stuck.Load() {
		return nil
	}
	return w.c.device.do(func() error {
		var errs []error
		for r, at := range w.at {
			if at != 0 && r != w.c.cfg.Rank {
				errs = append(errs, w.c.device.unmapShared(at, w.segment.bytes))
			}
			w.at[r] = 0
		}
		return errors.Join(errs...)
	})
}

// locate finds a buffer on all ranks: at this rank's offset, as NCCL does.
func (w *window) locate(address uintptr, at *[kernels.MaxRanks]uintptr) {
	offset := address - w.segment.Address()
	for r := range w.c.cfg.Ranks {
		at[r] = w.at[r] + offset
	}
}
