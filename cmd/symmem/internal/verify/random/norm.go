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

// A norm is an all-reduce or a reduce-scatter fused with an RMSNorm. Ranks outside the group also
// write its input and read its outputs, because pools must record the same uses of buffers on all
// ranks. They only skip the call.

// runNorm computes and checks a random norm if at least three buffers are live.
func (r *round) runNorm(ctx context.Context) error {
	g := choose(r.choices, r.groups.all) // nil if this rank is not a member
	drawn := r.buffers.drawBuffers(3)
	if drawn == nil {
		return nil
	}

	n := r.drawNorm(g, drawn)
	input, output, others := drawn[0].buffer, drawn[1].buffer, drawn[2].buffer
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

// callNorm computes n unless this rank is not in the group, or the group does not support n.
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

// maxNormElements limits the elements on each rank, because the expected output is slow to compute.
const maxNormElements = 1 << 14

// drawNorm draws a norm whose tensors fit into the buffers.
func (r *round) drawNorm(g *symmem.Group, drawn []liveBuffer) *workload.Norm {
	hidden, quant := r.drawHiddenAndQuant()
	capacity := int(min(drawn[0].bytes, drawn[1].bytes, drawn[2].bytes))
	bytesPerElement := r.normBytesPerElement()
	shouldScatter := r.choices.isOneIn(2)
	maxElements := min(capacity/bytesPerElement, maxNormElements)
	maxRows := max(1, maxElements/hidden)
	rows := 1 + r.choices.IntN(maxRows)
	dataType := choose(r.choices, []driver.DataType{driver.BFloat16, driver.Float16})
	// Not from r.choices, because ranks in groups of other sizes draw fewer or more values.
	const seed2 = 1 // arbitrary
	values := rand.New(rand.NewPCG(r.choices.Uint64(), seed2))
	size, rank := r.sizeAndRankIn(g)
	c := formula.NewNormCase(values, size, rows, hidden, dataType, quant)
	canScatter := hidden*bytesPerElement <= capacity // a row of each rank fits
	if shouldScatter && canScatter {
		casesOfRanks := c.Scatter(values)
		c = casesOfRanks[rank]
	}

	return &workload.Norm{NormCase: c}
}

// normBytesPerElement returns how many bytes of a buffer an element needs at most.
func (r *round) normBytesPerElement() int {
	scatterInputBytes := 2 * r.env.rt.Size() // a 16-bit float for each rank
	return max(scatterInputBytes, workload.MaxNormBytes)
}

// drawHiddenAndQuant draws the size of a row in elements and the kind of quantization.
func (r *round) drawHiddenAndQuant() (hidden int, quant driver.Quant) {
	const maxHidden = minMessage / workload.MaxNormBytes // so any buffer fits an all-reduced row
	drawMultiple := func(unit int) int { return unit * (1 + r.choices.IntN(maxHidden/unit)) }
	hidden = drawMultiple(driver.NormUnit)
	quant = choose(r.choices, []driver.Quant{
		driver.QuantNone, driver.QuantStatic, driver.QuantPerRow, driver.QuantPerGroup,
	})
	if quant == driver.QuantPerGroup {
		hidden = drawMultiple(driver.QuantGroup)
	}

	return hidden, quant
}

// checkNorm counts a computed norm and adds a finding if an output is wrong.
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
