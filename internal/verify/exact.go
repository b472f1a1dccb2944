package verify

import (
	"bytes"
	"context"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
	"symmem/internal/workload"
)

// exact is a row whose result is compared bit by bit with what a formula gives.
type exact struct {
	formula  driver.Formula
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	seed     uint64
}

// exactly gives a row the type and the reduction whose turn it is, if there is a formula.
func (c *Config) exactly(w *row, at int) {
	if c.Deterministic <= symmem.AnyFormula {
		return
	}
	types := reduce.DataTypes()
	x := &exact{
		formula:  driver.Formula(c.Deterministic - symmem.AnyFormula),
		dataType: types[at%len(types)], reduceOp: symmem.ReduceOp(at / len(types) % driver.ReduceOps),
		seed: c.Seed<<20 + uint64(at),
	}
	w.exact, w.value = x, 0
	w.name += " " + x.reduceOp.String() + " " + x.dataType.String()
	w.elements = w.elements * elementBytes / int64(x.dataType.Size())
}

// input is what a rank of a group contributes.
func (w *row) input(rank, ranks int) []byte {
	return formula.Input(w.exact.dataType, w.exact.seed, rank, ranks, w.elements)
}

// fillExact writes this rank's numbers.
func (r *runner) fillExact(ctx context.Context, s *step) error {
	what := &r.program.rows[s.row]
	memory, err := r.memory(s)
	if err != nil {
		return err
	}
	g, stream := r.groups[what.group], r.rt.DefaultStream()
	err = stream.Copy(memory, symmem.Host(what.input(g.Rank(), g.Size())))
	if err != nil {
		return err
	}
	return stream.Synchronize(ctx)
}

// reduceExact does a row's all-reduce in place and compares every bit.
func (r *runner) reduceExact(ctx context.Context, s *step, m symmem.Memory) error {
	what := &r.program.rows[s.row]
	x, g, stream := what.exact, r.groups[what.group], r.rt.DefaultStream()
	err := g.AllReduce(ctx, m, m, what.elements, x.dataType, x.reduceOp, stream)
	if err != nil {
		return err
	}
	got := make([]byte, what.elements*int64(x.dataType.Size()))
	if err := stream.Copy(symmem.Host(got), m); err != nil {
		return err
	}
	if err := stream.Synchronize(ctx); err != nil {
		return err
	}
	var inputs [][]byte
	for rank := range g.Size() {
		inputs = append(inputs, what.input(rank, g.Size()))
	}
	found := compareBits(got, formula.Reduce(x.formula, x.reduceOp, x.dataType, inputs), x.dataType)
	found.Symmetric = g.IsSymmetric(m)
	r.findings[s.row] = found
	return r.notePath(g, m, what.elements, x.dataType)
}

// compareBits checks every element; the distance of those that differ is that of their values.
func compareBits(got, want []byte, t symmem.DataType) finding {
	f := finding{Ran: true}
	sum, size := 0.0, t.Size()
	for at := 0; at < len(want); at += size {
		if bytes.Equal(got[at:at+size], want[at:at+size]) {
			continue
		}
		diff := distance(workload.Decode(got[at:], t), workload.Decode(want[at:], t))
		f.Wrong++
		f.MaxDiff = max(f.MaxDiff, diff)
		sum += diff
	}
	f.MeanDiff = sum / float64(max(len(want)/size, 1))
	return f
}
