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

// maxNormElements limits the number of elements of a norm on each rank, because computing the
// expected output is slow.
const maxNormElements = 1 << 14

// runNorm computes and checks a norm in a random group: an all-reduce or a reduce-scatter that
// one kernel combines with an RMSNorm. It does not check the output if the group's path does not
// support the norm. Without three live buffers, it does nothing.
func (r *round) runNorm(ctx context.Context) error {
	g := r.groups.all[r.groups.drawIndex()]
	drawnBuffers := r.buffers.drawBuffers(3)
	if drawnBuffers == nil {
		return nil
	}
	n := r.drawNorm(g, drawnBuffers)
	err := n.Place(drawnBuffers[0].buffer.Memory(), drawnBuffers[1].buffer.Memory(),
		drawnBuffers[2].buffer.Memory())
	if err != nil {
		return err
	}
	// Ranks outside the group also fill and read the memory, because pools must record the same uses
	// on all ranks.
	s := choose(r.choices, r.env.streams)
	rank := 0 // outside the group
	if g != nil {
		rank = g.Rank()
	}
	if err := n.Fill(rank, s); err != nil {
		return fmt.Errorf("writing the input of a norm: %w", err)
	}
	isComputed := false
	if g != nil {
		err := r.env.rt.Interop().Do(ctx, g, symmem.Call{Operation: n.Operation, Norm: &n.Args}, s)
		if err != nil && !errors.Is(err, symmem.ErrUnsupported) {
			return fmt.Errorf("norm of %v: %w", n, err)
		}
		isComputed = err == nil
	}
	if err := errors.Join(n.Read(s), s.Synchronize(ctx)); err != nil {
		return fmt.Errorf("norm of %v: %w", n, err)
	}
	if isComputed {
		r.checkNorm(g, n)
	}
	return nil
}

// drawNorm draws a norm of this rank whose tensors fit into the buffers. g is nil outside the
// group.
func (r *round) drawNorm(g *symmem.Group, drawnBuffers []liveBuffer) *workload.Norm {
	capacity := drawnBuffers[0].bytes
	for _, b := range drawnBuffers {
		capacity = min(capacity, b.bytes)
	}
	hidden := driver.NormUnit * (1 + r.choices.IntN(minMessage/8/driver.NormUnit))
	quant := driver.Quant(r.choices.IntN(4))
	if quant == driver.QuantPerGroup {
		hidden = driver.QuantGroup * (1 + r.choices.IntN(minMessage/8/driver.QuantGroup))
	}
	// See the sizes at workload.Norm.Place.
	bytesPerElement := 2 * max(4, r.env.rt.Size())
	isScattered := r.choices.IntN(2) == 0 && hidden*bytesPerElement <= int(capacity)
	rows := 1 + r.choices.IntN(max(1, min(int(capacity)/bytesPerElement, maxNormElements)/hidden))
	t := choose(r.choices, []driver.DataType{driver.BFloat16, driver.Float16})
	// The group may have a different size on other ranks, so NewNormCase may draw more or fewer
	// numbers there. Give it a separate generator.
	normRandom := rand.New(rand.NewPCG(r.choices.Uint64(), 1))
	ranks, rank := r.env.rt.Size(), 0 // outside the group
	if g != nil {
		ranks, rank = g.Size(), g.Rank()
	}
	c := formula.NewNormCase(normRandom, ranks, rows, hidden, t, quant)
	if isScattered {
		c = c.Scatter(normRandom)[rank]
	}
	return &workload.Norm{NormCase: c}
}

func (r *round) checkNorm(g *symmem.Group, n *workload.Norm) {
	r.tally.Calls++
	r.tally.Norms++
	r.tally.Bytes += n.Bytes()
	wrongCount, first := n.CountWrong()
	if wrongCount == 0 {
		return
	}
	r.tally.Wrong += wrongCount
	r.tally.addFinding(fmt.Sprintf("round %d, rank %d, norm of %v in group %s: %d elements are "+
		"wrong, the first %s", r.number, r.env.rt.Rank(), n, g.ID(), wrongCount, first))
}
