package verify

import (
	"bytes"
	"math"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// A case is an all-reduce of a buffer, whose result is checked. By default, it sums float32
// elements. If the case has the value 5, each element is 5 on rank 0, 10 on rank 1 and 15 on rank
// 2. All elements of the result must thus be 30.
//
// With Config.Deterministic, the inputs are random, and cases use all types and reductions in turn.
// The result must match a formula bit for bit. A formula is an order of additions, which determines
// how the result is rounded.

// setFormula prepares the case at index i for the configured formula, if there is one.
func (c *Config) setFormula(p *plannedCase, i int) {
	hasFormula := c.Deterministic > symmem.FormulaAny
	if !hasFormula {
		return
	}

	// Package driver numbers the formulas in the same order, but from 0 on.
	p.formula = driver.Formula(c.Deterministic - symmem.FormulaAny)
	types := workload.DataTypes()
	p.dataType = types[i%len(types)]
	reductions := workload.Reductions(p.dataType)
	p.reduceOp = reductions[i/len(types)%len(reductions)]
	p.seed = c.Seed<<20 + uint64(i) // differs between cases
	p.value = 0                     // not used
	p.name += " " + p.reduceOp.String() + " " + p.dataType.String()
	p.elements = p.elements * elementBytes / int64(p.dataType.Size()) // in at most as many bytes
}

// input returns the content of a rank's buffer before the all-reduce.
func (p *plannedCase) input(rank, ranks int) []byte {
	if p.formula != driver.AnyFormula {
		return formula.Input(p.dataType, p.seed, rank, ranks, p.elements)
	}

	element := workload.Encode(nil, p.dataType, p.value*float64(rank+1))
	return bytes.Repeat(element, int(p.elements))
}

// expectedSum returns the right result of a case without a formula:
// value + 2*value + ... + ranks*value.
func expectedSum(value float64, ranks int) float64 {
	return value * float64(ranks) * float64(ranks+1) / 2
}

// finding is the result of one case on one rank. It compares the elements of the buffer after the
// all-reduce with the right elements.
type finding struct {
	Completed bool    `json:"ran"`       // whether the all-reduce completed
	Symmetric bool    `json:"symmetric"` // whether the buffer was in a window of the group
	Wrong     int64   `json:"wrong"`     // number of wrong elements
	MaxDiff   float64 `json:"max_diff"`  // largest difference of an element from the right one
	MeanDiff  float64 `json:"mean_diff"` // mean of these differences
}

// sumTolerance is the permitted relative error of sums without a formula, which are rounded if
// there are very many ranks.
const sumTolerance = 1e-5

// compare compares got, the content of a rank's buffer after the all-reduce, with the right result.
func (p *plannedCase) compare(got []byte, ranks int) finding {
	if p.formula == driver.AnyFormula {
		sum := workload.Encode(nil, p.dataType, expectedSum(p.value, ranks))
		return p.compareWith(got, sum, sumTolerance)
	}

	var inputs [][]byte // by rank
	for rank := range ranks {
		inputs = append(inputs, p.input(rank, ranks))
	}

	want := formula.Reduce(p.formula, p.reduceOp, p.dataType, inputs)
	const bitForBit = 0
	return p.compareWith(got, want, bitForBit)
}

// compareWith compares the elements of got with those of want. If want has fewer elements, it is
// repeated. tolerance is the permitted relative error. With 0, all bits must be equal.
func (p *plannedCase) compareWith(got, want []byte, tolerance float64) finding {
	f := finding{Completed: true}
	sumOfDiffs := 0.0
	size := p.dataType.Size()
	for offset := 0; offset < len(got); offset += size {
		wantOffset := offset % len(want)
		gotElement := got[offset : offset+size]
		wantElement := want[wantOffset : wantOffset+size]
		if bytes.Equal(gotElement, wantElement) {
			continue
		}

		gotValue := workload.Decode(gotElement, p.dataType)
		wantValue := workload.Decode(wantElement, p.dataType)
		diff := difference(gotValue, wantValue)
		isWrong := tolerance == 0 || diff > tolerance*max(wantValue, 1)
		if isWrong {
			f.Wrong++
		}

		f.MaxDiff = max(f.MaxDiff, diff)
		sumOfDiffs += diff
	}

	elementCount := len(got) / size
	f.MeanDiff = sumOfDiffs / float64(max(elementCount, 1)) // no division by 0
	return f
}

// difference returns |got - want|. It returns a large number instead of infinity and NaN, which
// JSON cannot represent.
func difference(got, want float64) float64 {
	d := math.Abs(got - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}

	return d
}
