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
	Completed bool    `json:"ran"`
	Symmetric bool    `json:"symmetric"` // whether the buffer was in a window of the group
	Wrong     int64   `json:"wrong"`     // number of wrong elements
	MaxDiff   float64 `json:"max_diff"`  // largest distance from the expected value
	MeanDiff  float64 `json:"mean_diff"` // mean distance
}

// Sums may be rounded if there are very many ranks. If results must match bit for bit, tolerance is
// unused.
const tolerance = 1e-5

// setFormula prepares planned case i for a configured order of additions (formula). Cases use all
// types and reductions in turn.
func (c *Config) setFormula(r *plannedCase, i int) {
	if c.Deterministic <= symmem.FormulaAny {
		return
	}
	types := workload.DataTypes()
	r.formula = driver.Formula(c.Deterministic - symmem.FormulaAny)
	r.dataType = types[i%len(types)]
	reductions := workload.Reductions(r.dataType)
	r.reduceOp = reductions[i/len(types)%len(reductions)]
	r.seed, r.value = c.Seed<<20+uint64(i), 0
	r.name += " " + r.reduceOp.String() + " " + r.dataType.String()
	r.elements = r.elements * elementBytes / int64(r.dataType.Size())
}

func (r *plannedCase) input(rank, ranks int) []byte {
	if r.formula != driver.AnyFormula {
		return formula.Input(r.dataType, r.seed, rank, ranks, r.elements)
	}
	element := workload.Encode(nil, r.dataType, r.value*float64(rank+1))
	return bytes.Repeat(element, int(r.elements))
}

func expectedSum(value float64, ranks int) float64 {
	return value * float64(ranks) * float64(ranks+1) / 2
}

func (r *plannedCase) compare(got []byte, ranks int) finding {
	if r.formula == driver.AnyFormula {
		want := workload.Encode(nil, r.dataType, expectedSum(r.value, ranks))
		return r.compareWith(got, want, tolerance)
	}
	var inputs [][]byte
	for rank := range ranks {
		inputs = append(inputs, r.input(rank, ranks))
	}
	return r.compareWith(got, formula.Reduce(r.formula, r.reduceOp, r.dataType, inputs), 0)
}

// compareWith compares elements. If wanted has fewer elements than got, it is repeated.
func (r *plannedCase) compareWith(got, wanted []byte, tolerance float64) finding {
	f := finding{Completed: true}
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

// distance returns |v - want|, or a large number instead of infinity and NaN, which JSON cannot
// represent.
func distance(v, want float64) float64 {
	d := math.Abs(v - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}
	return d
}
