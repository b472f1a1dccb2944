package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"symmem"
	"symmem/driver/nccl/kernels"
	"symmem/internal/reduce"
)

// bfloat16Bytes is the size of an element.
const bfloat16Bytes = 2

// layer is a rank's part of a layer: it has hidden/ranks inputs of every output's weights, and as
// many columns of the input. The product of both is this rank's share of every element of the
// output, which the all-reduce adds up. Matrices are stored by rows: the weights have one for each
// output, as torch.nn.Linear and the engines keep them.
//
// The weights are dense small numbers; an input has one element in each row that is not 0, so that
// bfloat16 holds every sum exactly. How long a dense product takes does not depend on values.
type layer struct {
	multiplier
	lane *lane
	// width is hidden, depth hidden/ranks.
	width, depth int
	// weights are those of two layers in turns, so that the second does not find its own in a cache.
	weights [2]symmem.Buffer
	input   symmem.Buffer
}

// newLayer makes the matrices.
func newLayer(
	ctx context.Context, l *lane, by multiplier, width, sequences int,
) (*layer, error) {
	m := &layer{multiplier: by, lane: l, width: width, depth: width / l.rt.Size()}
	return m, m.matrices(ctx, sequences)
}

func (m *layer) matrices(ctx context.Context, sequences int) (err error) {
	weight := func(row, column int) float32 { return float32(1 + (row+column)%4) }
	for i := range m.weights {
		if m.weights[i], err = m.matrix(ctx, m.width, m.depth, weight); err != nil {
			return err
		}
	}
	m.input, err = m.matrix(ctx, sequences, m.depth, func(row, column int) float32 {
		if column != row%m.depth {
			return 0
		}
		return float32(m.lane.rt.Rank() + 1 + row%4)
	})
	return err
}

// matrix makes a matrix of this rank's own.
func (m *layer) matrix(
	ctx context.Context, rows, columns int, value func(row, column int) float32,
) (symmem.Buffer, error) {
	values := make([]uint16, rows*columns)
	for i := range values {
		values[i] = reduce.BFloat16Bits(value(i/columns, i%columns))
	}
	b, err := m.lane.desk.Alloc(int64(len(values)) * bfloat16Bytes)
	if err != nil {
		return b, err
	}
	part, err := b.Memory().Slice(0, int64(len(values))*bfloat16Bytes)
	if err != nil {
		return b, err
	}
	s := m.lane.rt.DefaultStream()
	return b, errors.Join(s.Copy(part, symmem.Host(values)), s.Synchronize(ctx))
}

// call is the all-reduce of a layer's output.
func (m *layer) call(sequences int) *call {
	return &call{
		send: m.lane.send.Memory(), recv: m.lane.recv.Memory(),
		count: int64(sequences * m.width), dataType: symmem.BFloat16, reduceOp: symmem.Sum,
	}
}

// product queues the product of layer i.
func (m *layer) product(i, sequences int) error {
	return m.multiply(&kernels.Product{
		Weights: m.weights[i%len(m.weights)].Address(), Input: m.input.Address(),
		Output: m.lane.send.Address(), Rows: m.width, Depth: m.depth, Sequences: sequences,
	})
}

// run queues layer i.
func (m *layer) run(ctx context.Context, i int, c *call, sequences int) error {
	if err := m.product(i, sequences); err != nil {
		return err
	}
	return m.lane.rt.World().AllReduce(
		ctx, c.send, c.recv, c.count, c.dataType, c.reduceOp, m.lane.rt.DefaultStream())
}

// wanted is an element of the output: every rank's input is its number, counted from 1, more than
// the part that all have.
func (m *layer) wanted(row, column int) float64 {
	n := m.lane.rt.Size()
	inputs := n*(n+1)/2 + n*(row%4)
	return float64(inputs * (1 + (row%m.depth+column)%4))
}

// ErrWrong means that a layer has computed something else than it should.
var ErrWrong = errors.New("wrong elements")

// rounding is the relative error that bfloat16 may have once sums are over 256.
const rounding = 1.0 / 64

// check spoils the output, replays a runner's graph and looks at every element.
func (m *layer) check(ctx context.Context, r *runner, sequences int) error {
	s, got := r.rt.DefaultStream(), make([]uint16, sequences*m.width)
	out, err := r.call.recv.Slice(0, int64(len(got))*bfloat16Bytes)
	if err != nil {
		return err
	}
	if err := errors.Join(s.Fill(out, 0xff), r.graph.Launch(s)); err != nil {
		return err
	}
	if err := errors.Join(s.Copy(symmem.Host(got), out), s.Synchronize(ctx)); err != nil {
		return err
	}
	wrong := int64(0)
	for i, bits := range got {
		value := float64(reduce.BFloat16Value(bits))
		want := m.wanted(i/m.width, i%m.width)
		if !(math.Abs(value-want) <= rounding*max(0, want-256)) {
			wrong++
		}
	}
	all, err := m.lane.gather(ctx, wrong)
	if err != nil {
		return err
	}
	for rank, n := range all {
		if n > 0 {
			return fmt.Errorf("%d of %d on rank %d, path %s: %w", n, len(got), rank, r.took, ErrWrong)
		}
	}
	return nil
}
