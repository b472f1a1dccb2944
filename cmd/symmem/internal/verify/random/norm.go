package random

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	input, output, others := drawnBuffers[0].buffer, drawnBuffers[1].buffer, drawnBuffers[2].buffer
	if err := n.Place(input.Memory(), output.Memory(), others.Memory()); err != nil {
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
		call := symmem.Call{Operation: n.Operation, Norm: &n.Args}
		err := r.env.rt.Interop().Do(ctx, g, call, s)
		if err != nil && !errors.Is(err, symmem.ErrUnsupported) {
			return fmt.Errorf("norm of %v: %w", n, err)
		}

		isComputed = err == nil
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

// drawNorm draws a norm of this rank whose tensors fit into the buffers. g is nil outside the
// group. All ranks draw the same numbers from r.choices, even if their groups differ.
func (r *round) drawNorm(g *symmem.Group, drawnBuffers []liveBuffer) *workload.Norm {
	capacity := math.MaxInt
	for _, b := range drawnBuffers {
		capacity = min(capacity, int(b.bytes))
	}

	// The number of elements per row (hidden) is a multiple of a unit. It is at most minMessage/8, so
	// that a row with 8 bytes per element fits into the smallest buffer.
	unit := driver.NormUnit
	hidden := unit * (1 + r.choices.IntN(minMessage/8/unit))
	const quantCount = 4
	quant := driver.Quant(r.choices.IntN(quantCount))
	if quant == driver.QuantPerGroup {
		unit = driver.QuantGroup
		hidden = unit * (1 + r.choices.IntN(minMessage/8/unit))
	}

	// A buffer needs up to 8 bytes per element; see workload.Norm.Place. The input of a reduce-scatter
	// has 2 bytes for each element of each rank.
	bytesPerElement := max(8, 2*r.env.rt.Size())
	mayScatter := r.choices.IntN(2) == 0
	isScattered := mayScatter && hidden*bytesPerElement <= capacity
	maxElements := min(capacity/bytesPerElement, maxNormElements)
	maxRows := max(1, maxElements/hidden)
	rows := 1 + r.choices.IntN(maxRows)
	t := choose(r.choices, []driver.DataType{driver.BFloat16, driver.Float16})
	// The group may have a different size on other ranks, so NewNormCase may draw more or fewer
	// numbers there. Give it a separate generator.
	const stream = 1 // any number
	normRandom := rand.New(rand.NewPCG(r.choices.Uint64(), stream))
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

// checkNorm counts a computed norm, and adds a finding if an output is wrong.
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
