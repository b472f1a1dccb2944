package random

import (
	"context"
	"errors"

	"symmem"
)

// suspend releases the memory of a pool, and sometimes also that of the world's group, and then
// allocates it again. Open graphs are replayed later. A graph that contains NCCL window kernels
// prevents suspension.
func (r *round) suspend(ctx context.Context) error {
	p, groupToo := choose(r.draws, r.buffers.pools), r.draws.chance(2)
	if r.byAddress() {
		return nil // sums are wrong, and Suspend compares ledgers at every check level
	}
	if err := errors.Join(r.world.synchronize(ctx), r.world.barrier(ctx)); err != nil {
		return err
	}
	_, err := p.Suspend(ctx, symmem.KeepContents)
	if errors.Is(err, symmem.ErrBusy) {
		return nil
	}
	if err != nil || !groupToo {
		return errors.Join(err, p.Resume(ctx))
	}
	if _, err := r.groups.world.Suspend(ctx); err != nil && !errors.Is(err, symmem.ErrBusy) {
		return err
	}
	return errors.Join(r.groups.world.Resume(ctx), p.Resume(ctx))
}
