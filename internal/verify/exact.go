package verify

import (
	"bytes"

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

// compare compares every bit of a row's result with what the formula gives.
func (w *row) compare(got []byte, ranks int) finding {
	var inputs [][]byte
	for rank := range ranks {
		inputs = append(inputs, w.input(rank, ranks))
	}
	x := w.exact
	return compareBits(got, formula.Reduce(x.formula, x.reduceOp, x.dataType, inputs), x.dataType)
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
