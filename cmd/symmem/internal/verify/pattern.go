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
	Completed bool    `json:"ran"`       // whether the all-reduce completed
	Symmetric bool    `json:"symmetric"` // whether the buffer was in a window of the group
	Wrong     int64   `json:"wrong"`     // number of wrong elements
	MaxDiff   float64 `json:"max_diff"`  // largest distance of an element from the expected value
	MeanDiff  float64 `json:"mean_diff"` // mean of these distances
}

// tolerance is the permitted relative error of sums without a formula, which may be rounded if
// there are very many ranks.
const tolerance = 1e-5

// setFormula prepares p, the case at index i, for the configured order of additions (formula), if
// there is one. Cases use all types and reductions in turn.
func (c *Config) setFormula(p *plannedCase, i int) {
	if c.Deterministic <= symmem.FormulaAny {
		return
	}
	types := workload.DataTypes()
	p.formula = driver.Formula(c.Deterministic - symmem.FormulaAny)
	p.dataType = types[i%len(types)]
	reductions := workload.Reductions(p.dataType)
	p.reduceOp = reductions[i/len(types)%len(reductions)]
	p.seed = c.Seed<<20 + uint64(i)
	p.value = 0
	p.name += " " + p.reduceOp.String() + " " + p.dataType.String()
	p.elements = p.elements * elementBytes / int64(p.dataType.Size()) // the buffer's size stays
}

// input returns a rank's input: random elements with a formula, and equal elements without one.
func (p *plannedCase) input(rank, ranks int) []byte {
	if p.formula != driver.AnyFormula {
		return formula.Input(p.dataType, p.seed, rank, ranks, p.elements)
	}
	element := workload.Encode(nil, p.dataType, p.value*float64(rank+1))
	return bytes.Repeat(element, int(p.elements))
}

// expectedSum returns the sum of the elements value, 2*value and so on of all ranks.
func expectedSum(value float64, ranks int) float64 {
	return value * float64(ranks) * float64(ranks+1) / 2
}

// compare compares the output of the all-reduce on a rank with the right output.
func (p *plannedCase) compare(got []byte, ranks int) finding {
	if p.formula == driver.AnyFormula {
		want := workload.Encode(nil, p.dataType, expectedSum(p.value, ranks))
		return p.compareWith(got, want, tolerance)
	}
	var inputs [][]byte
	for rank := range ranks {
		inputs = append(inputs, p.input(rank, ranks))
	}
	const bitForBit = 0
	want := formula.Reduce(p.formula, p.reduceOp, p.dataType, inputs)
	return p.compareWith(got, want, bitForBit)
}

// compareWith compares the elements of got with those of allWanted, which it repeats if there are
// fewer. A tolerance of 0 permits no difference.
func (p *plannedCase) compareWith(got, allWanted []byte, tolerance float64) finding {
	f := finding{Completed: true}
	sum := 0.0 // of the distances
	size := p.dataType.Size()
	for offset := 0; offset < len(got); offset += size {
		element, want := got[offset:offset+size], allWanted[offset%len(allWanted):][:size]
		if bytes.Equal(element, want) {
			continue
		}
		wantValue := workload.Decode(want, p.dataType)
		diff := distance(workload.Decode(element, p.dataType), wantValue)
		if tolerance == 0 || diff > tolerance*max(wantValue, 1) {
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
