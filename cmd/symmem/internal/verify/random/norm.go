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

// A norm is an all-reduce or a reduce-scatter that one kernel combines with an RMSNorm. It is drawn
// at random for a random group of ranks. For example, 3 rows of 256 elements are drawn for the
// group with index 1, to which the ranks 0 and 2 belong. The index can mean different groups on
// different ranks: on rank 1, it is nil.
//
// Nevertheless, all ranks must draw the same numbers and use the same memory. Draws thus do not
// depend on the group. Rank 1 also writes the input and reads the outputs, but makes no call.

// runNorm computes and checks a random norm. Without three live buffers, it does nothing.
func (r *round) runNorm(ctx context.Context) error {
	g := r.groups.all[r.groups.drawIndex()] // nil outside the group
	drawnBuffers := r.buffers.drawBuffers(3)
	if drawnBuffers == nil {
		return nil
	}

	n := r.drawNorm(g, drawnBuffers)
	input, output, others := drawnBuffers[0].buffer, drawnBuffers[1].buffer, drawnBuffers[2].buffer
	if err := n.Place(input.Memory(), output.Memory(), others.Memory()); err != nil {
		return err
	}

	s := choose(r.choices, r.env.streams)
	_, rank := r.sizeAndRankIn(g)
	if err := n.Fill(rank, s); err != nil {
		return fmt.Errorf("writing the input of a norm: %w", err)
	}

	isComputed, err := r.callNorm(ctx, g, n, s)
	if err != nil {
		return fmt.Errorf("norm of %v: %w", n, err)
	}

	readErr := n.Read(s)
	syncErr := s.Synchronize(ctx)
	if err := errors.Join(readErr, syncErr); err != nil {
		return fmt.Errorf("norm of %v: %w", n, err)
	}

	if isComputed {
		r.checkNorm(g, n)
	}

	return nil
}

// sizeAndRankIn returns the size of a group and this rank's number in it. Outside the group, it
// returns the size of the world and 0.
func (r *round) sizeAndRankIn(g *symmem.Group) (size, rank int) {
	if g == nil {
		return r.env.rt.Size(), 0
	}

	return g.Size(), g.Rank()
}

// callNorm makes the call. It returns false if there is nothing to check: outside the group, or if
// the group does not support the norm.
func (r *round) callNorm(
	ctx context.Context, g *symmem.Group, n *workload.Norm, s *symmem.Stream,
) (isComputed bool, err error) {
	if g == nil {
		return false, nil
	}

	call := symmem.Call{Operation: n.Operation, Norm: &n.Args}
	err = r.env.rt.Interop().Do(ctx, g, call, s)
	if errors.Is(err, symmem.ErrUnsupported) {
		return false, nil
	}

	return err == nil, err
}

// maxNormElements limits the number of elements of a norm on each rank, because computing the
// expected output is slow.
const maxNormElements = 1 << 14

// drawNorm draws a norm whose tensors fit into the buffers.
func (r *round) drawNorm(g *symmem.Group, drawnBuffers []liveBuffer) *workload.Norm {
	hidden, quant := r.drawHiddenAndQuant()
	capacity := int(min(drawnBuffers[0].bytes, drawnBuffers[1].bytes, drawnBuffers[2].bytes))
	// A buffer needs up to 8 bytes per element of this rank (see workload.Norm.Place). The input of a
	// reduce-scatter has 2 bytes for each element of each rank.
	bytesPerElement := max(8, 2*r.env.rt.Size())
	mayScatter := r.choices.isOneIn(2)
	isScattered := mayScatter && hidden*bytesPerElement <= capacity // one row must fit
	maxElements := min(capacity/bytesPerElement, maxNormElements)
	maxRows := max(1, maxElements/hidden)
	rows := 1 + r.choices.IntN(maxRows)
	t := choose(r.choices, []driver.DataType{driver.BFloat16, driver.Float16})
	// The values need a separate generator, because their number depends on the size of the group,
	// which can differ between ranks.
	const stream = 1 // any number
	values := rand.New(rand.NewPCG(r.choices.Uint64(), stream))
	size, rank := r.sizeAndRankIn(g)
	c := formula.NewNormCase(values, size, rows, hidden, t, quant)
	if isScattered {
		c = c.Scatter(values)[rank]
	}

	return &workload.Norm{NormCase: c}
}

// drawHiddenAndQuant draws the number of elements of a row (hidden) and the kind of quantization.
func (r *round) drawHiddenAndQuant() (hidden int, quant driver.Quant) {
	const maxHidden = minMessage / 8 // A row with 8 bytes per element fits into the smallest buffer.
	drawMultiple := func(unit int) int { return unit * (1 + r.choices.IntN(maxHidden/unit)) }
	hidden = drawMultiple(driver.NormUnit)
	const quantCount = 4
	quant = driver.Quant(r.choices.IntN(quantCount))
	if quant == driver.QuantPerGroup { // requires whole groups of elements
		hidden = drawMultiple(driver.QuantGroup)
	}

	return hidden, quant
}

// checkNorm counts a computed norm. If an output is wrong, it adds a finding.
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
