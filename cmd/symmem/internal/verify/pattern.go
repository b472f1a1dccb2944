package verify

import (
	"bytes"
	"math"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// finding is the result of one rank in one all-reduce.
type finding struct {
	// Ran reports whether the all-reduce completed and its result was read.
	Ran bool `json:"ran"`
	// Symmetric reports whether the buffer was in a window of the group.
	Symmetric bool `json:"symmetric"`
	// Wrong is the number of wrong elements.
	Wrong int64 `json:"wrong"`
	// MaxDiff is the maximum distance of an element from its expected value.
	MaxDiff float64 `json:"max_diff"`
	// MeanDiff is the mean of these distances over all elements.
	MeanDiff float64 `json:"mean_diff"`
}

// tolerance is the permitted relative error of a sum. Sums over very many ranks are not exact,
// because they are rounded. The tolerance does not apply to results that must match a formula.
const tolerance = 1e-5

// setFormula assigns a type and a reduction to w, the row with index i, so that rows cycle
// through all combinations. If no formula is configured, it does nothing.
func (c *Config) setFormula(w *row, i int) {
	if c.Deterministic <= symmem.FormulaAny {
		return
	}
	types := workload.DataTypes()
	w.formula = driver.Formula(c.Deterministic - symmem.FormulaAny)
	w.dataType = types[i%len(types)]
	reductions := workload.Reductions(w.dataType)
	w.reduceOp = reductions[i/len(types)%len(reductions)]
	w.seed, w.value = c.Seed<<20+uint64(i), 0
	w.name += " " + w.reduceOp.String() + " " + w.dataType.String()
	w.elements = w.elements * elementBytes / int64(w.dataType.Size())
}

func (r *row) input(rank, ranks int) []byte {
	if r.formula != driver.AnyFormula {
		return formula.Input(r.dataType, r.seed, rank, ranks, r.elements)
	}
	part := workload.Encode(nil, r.dataType, r.value*float64(rank+1))
	return bytes.Repeat(part, int(r.elements))
}

func expected(value float64, n int) float64 { return value * float64(n) * float64(n+1) / 2 }

func (r *row) compare(got []byte, ranks int) finding {
	if r.formula == driver.AnyFormula {
		want := workload.Encode(nil, r.dataType, expected(r.value, ranks))
		return r.compareWith(got, want, tolerance)
	}
	var inputs [][]byte
	for rank := range ranks {
		inputs = append(inputs, r.input(rank, ranks))
	}
	return r.compareWith(got, formula.Reduce(r.formula, r.reduceOp, r.dataType, inputs), 0)
}

// compareWith compares the elements of got with those of wanted. If wanted is shorter, its
// elements are repeated.
func (r *row) compareWith(got, wanted []byte, tolerance float64) finding {
	f := finding{Ran: true}
	sum, size := 0.0, r.dataType.Size()
	for offset := 0; offset < len(got); offset += size {
		element, want := got[offset:offset+size], wanted[offset%len(wanted):][:size]
		if bytes.Equal(element, want) {
			continue
		}
		value := workload.Decode(want, r.dataType)
		diff := distance(workload.Decode(element, r.dataType), value)
		if tolerance == 0 || diff > tolerance*max(value, 1) {
			f.Wrong++
		}
		f.MaxDiff = max(f.MaxDiff, diff)
		sum += diff
	}
	f.MeanDiff = sum / float64(max(len(got)/size, 1))
	return f
}

// distance returns |v - want|. Because JSON cannot represent infinity and NaN, it returns a
// large number instead.
func distance(v, want float64) float64 {
	d := math.Abs(v - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}
	return d
}
