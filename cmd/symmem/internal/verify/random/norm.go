package random

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// maxNormElements limits the size of a norm, because computing the expected output is slow.
const maxNormElements = 1 << 14

// runNorm computes a fused norm (all-reduce and RMSNorm in one kernel) in three live buffers, and
// checks all outputs, unless the path of the group does not support norms.
func (r *round) runNorm(ctx context.Context) error {
	g, picked := r.groups.all[r.groups.index()], r.buffers.pick(3)
	if picked == nil {
		return nil
	}
	n := r.drawNorm(g, picked)
	err := n.Place(picked[0].buffer.Memory(), picked[1].buffer.Memory(), picked[2].buffer.Memory())
	if err != nil {
		return err
	}
	// Ranks outside the group also fill and read the memory, because pools must record the same
	// uses on all ranks.
	s, rank := choose(r.draws, r.world.streams), 0
	if g != nil {
		rank = g.Rank()
	}
	if err := n.Fill(rank, s); err != nil {
		return fmt.Errorf("writing the input of a norm: %w", err)
	}
	supported := g != nil
	if supported {
		err := g.AllReduceRMSNorm(ctx, n.Args, s)
		supported = !errors.Is(err, symmem.ErrUnsupported)
		if err != nil && supported {
			return fmt.Errorf("norm of %v: %w", n, err)
		}
	}
	if err := errors.Join(n.Read(s), s.Synchronize(ctx)); err != nil {
		return fmt.Errorf("norm of %v: %w", n, err)
	}
	if supported {
		r.verifyNorm(g, n)
	}
	return nil
}

// drawNorm draws a norm that fits into the picked buffers.
func (r *round) drawNorm(g *symmem.Group, picked []liveBuffer) *workload.Norm {
	capacity := picked[0].bytes
	for _, b := range picked {
		capacity = min(capacity, b.bytes)
	}
	hidden := driver.NormUnit * (1 + r.draws.IntN(minMessage/8/driver.NormUnit))
	quant := driver.Quant(r.draws.IntN(4))
	if quant == driver.QuantPerGroup {
		hidden = driver.QuantGroup * (1 + r.draws.IntN(minMessage/8/driver.QuantGroup))
	}
	rows := 1 + r.draws.IntN(max(1, min(int(capacity)/8, maxNormElements)/hidden))
	t := choose(r.draws, []driver.DataType{driver.BFloat16, driver.Float16})
	// The group may have a different size on other ranks, so DrawNorm may draw more or fewer
	// numbers there. Give it a separate generator.
	draws, ranks := rand.New(rand.NewPCG(r.draws.Uint64(), 1)), r.world.rt.Size()
	if g != nil {
		ranks = g.Size()
	}
	return &workload.Norm{NormCase: formula.DrawNorm(draws, ranks, rows, hidden, t, quant)}
}

func (r *round) verifyNorm(g *symmem.Group, n *workload.Norm) {
	r.tally.Calls++
	r.tally.Norms++
	r.tally.Bytes += n.Bytes()
	wrong, first := n.CountWrong()
	if wrong == 0 {
		return
	}
	r.tally.Wrong += wrong
	r.tally.addFinding(fmt.Sprintf("round %d, rank %d, norm of %v in group %s: %d elements are "+
		"wrong, the first %s", r.number, r.world.rt.Rank(), n, g.ID(), wrong, first))
}
