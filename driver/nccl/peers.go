package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/memory"
	"symmem/driver/nccl/kernels"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
)

// peers are the segments of the other ranks under a window, as this rank has them mapped: for
// kernels of our own, which need no window of NCCL's.
type peers struct {
	// at are the segments by group rank; this rank's own is where it always is.
	at [kernels.MaxRanks]uintptr
	// mapped tells that this rank has mapped the segments of all, trouble what kept it from that
	// unless it was another rank.
	mapped  bool
	trouble string
	// reached tells that every rank has, unreached which one has not and why. They are settled when
	// the window is made.
	reached   bool
	unreached string

	parting ranked.Mutex[peersParting] // held while the mappings are given back
}

func peersKey(c *communicator, key driver.SegmentKey) handoff.Key {
	return handoff.Key{Space: handoff.Space(fmt.Sprintf("segment/%s/%d/%d/%d", c.cfg.ID, key.Pool,
		key.Ordinal, key.Generation))}
}

// lendSegment offers a segment to the other ranks of the group, if kernels of our own serve it.
func (c *communicator) lendSegment(
	key driver.SegmentKey, s *memory.Segment,
) (lent memory.Loan, err error) {
	if c.direct.none != "" {
		return memory.Loan{}, nil
	}
	d := c.device
	err = d.gpu.Do(func() error {
		handle, err := d.gpu.CUDA.Retain(s.Address())
		if err != nil {
			return err
		}
		defer d.gpu.Release(handle)
		lent, err = c.loans.Lend(peersKey(c, key), handle)
		return err
	})
	if err != nil {
		return memory.Loan{}, fmt.Errorf("offering a segment to peers: %w", err)
	}
	return lent, nil
}

// errNothingLent is why a rank cannot map the segment of one that could not lend it.
var errNothingLent = errors.New("a rank has lent nothing")

// reach maps the segments of the other ranks, as they have told of their loans, by group rank. What
// could not be mapped is left to other paths.
func (w *window) reach(ctx context.Context, told [][]byte) error {
	c := w.c
	if c.direct.none != "" {
		return driver.ErrUnsupported
	}
	if slices.ContainsFunc(told, func(loan []byte) bool { return len(loan) == 0 }) {
		return errNothingLent
	}
	for r, rank := range c.cfg.Ranks {
		if r == c.cfg.Rank {
			w.at[r] = w.segment.Address()
			continue
		}
		at, err := c.loans.Borrow(ctx, rank, peersKey(c, w.key), told[r][1:], w.segment.Bytes())
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
	if gpu.Stuck.Load() {
		return nil
	}
	return w.c.device.gpu.Do(func() error {
		var errs []error
		for r, at := range w.at {
			if at != 0 && r != w.c.cfg.Rank {
				errs = append(errs, w.c.device.gpu.Unmap(at, w.segment.Bytes()))
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
