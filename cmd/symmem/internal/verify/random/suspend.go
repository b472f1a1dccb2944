package random

import (
	"context"
	"errors"

	"symmem"
)

// suspend releases memory and allocates it again, while graphs stay open. If a graph contains
// NCCL's window kernels, the memory is busy.
func (r *round) suspend(ctx context.Context) error {
	p := choose(r.choices, r.buffers.pools)
	withGroup := r.choices.isOneIn(2) // also suspend the world
	if r.isPlacedByAddress() {
		return nil
	}

	syncErr := r.env.synchronize(ctx)
	barrierErr := r.env.barrier(ctx)
	if err := errors.Join(syncErr, barrierErr); err != nil {
		return err
	}

	_, err := p.Suspend(ctx, symmem.KeepContents)
	if errors.Is(err, symmem.ErrBusy) {
		return nil
	}

	if err != nil || !withGroup {
		resumeErr := p.Resume(ctx)
		return errors.Join(err, resumeErr)
	}

	_, err = r.groups.worldGroup.Suspend(ctx)
	if err != nil && !errors.Is(err, symmem.ErrBusy) {
		return err
	}

	groupErr := r.groups.worldGroup.Resume(ctx)
	poolErr := p.Resume(ctx)
	return errors.Join(groupErr, poolErr)
}
