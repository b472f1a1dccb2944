package symmem_test

import (
	"testing"
	"time"

	"symmem"
)

// TestWorldsInOneProcessAreIndependent aborts and closes one world while another world is in use.
func TestWorldsInOneProcessAreIndependent(t *testing.T) {
	trainers := openRanks(t, 2, symmem.Options{Timeout: time.Minute})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		trainer := &rank{Runtime: trainers[r.Rank()], t: t, ctx: t.Context()}
		pool, trainerPool := r.pool(), trainer.pool()
		b, other := r.window(pool, 4096), trainer.window(trainerPool, 4096)
		r.checkSum(r.World(), b)
		trainer.checkSum(trainer.World(), other)
		trainer.World().Abort()
		trainer.wantErr(trainer.World().Check(r.ctx), symmem.ErrAborted)
		r.checkSum(r.World(), b)
		symmem.FreeLive(trainer.Runtime)
		_ = trainer.Close() // returns the abort
		r.checkSum(r.World(), b)
		r.ok(r.World().Err())
	})
}
