package random

import (
	"context"
	"errors"

	"symmem"
)

// suspend releases memory and allocates it again, while graphs stay open. If a graph contains
// NCCL's window kernels, the memory is busy.
func (r *round) suspend(ctx context.Context) error {
	p, withGroup := choose(r.choices, r.buffers.pools), r.choices.isOneIn(2)
	if r.isPlacedByAddress() {
		return nil
	}
	if err := errors.Join(r.env.synchronize(ctx), r.env.barrier(ctx)); err != nil {
		return err
	}
	_, err := p.Suspend(ctx, symmem.KeepContents)
	if errors.Is(err, symmem.ErrBusy) {
		return nil
	}
	if err != nil || !withGroup {
		return errors.Join(err, p.Resume(ctx))
	}
	if _, err := r.groups.worldGroup.Suspend(ctx); err != nil && !errors.Is(err, symmem.ErrBusy) {
		return err
	}
	return errors.Join(r.groups.worldGroup.Resume(ctx), p.Resume(ctx))
}
