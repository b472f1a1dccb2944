package verify

import (
	"bytes"
	"math"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// finding is the result of one rank in one all-reduce, which is a case of the program.
type finding struct {
	Completed bool    `json:"ran"`       // whether the all-reduce completed
	Symmetric bool    `json:"symmetric"` // whether the buffer was in a window of the group
	Wrong     int64   `json:"wrong"`     // number of wrong elements
	MaxDiff   float64 `json:"max_diff"`  // largest distance of an element from the expected value
	MeanDiff  float64 `json:"mean_diff"` // mean of these distances
}

// sumTolerance is the permitted relative error of sums without a formula. With very many ranks,
// sums are rounded.
const sumTolerance = 1e-5

// setFormula prepares p, the case at index i, for the configured formula. A formula is an order of
// additions that determines every bit of the result. Cases use all types and reductions in turn.
// setFormula does nothing if no formula is configured.
func (c *Config) setFormula(p *plannedCase, i int) {
	hasFormula := c.Deterministic > symmem.FormulaAny
	if !hasFormula {
		return
	}

	// driver numbers the formulas as symmem does, but begins with 0 for FormulaAny.
	p.formula = driver.Formula(c.Deterministic - symmem.FormulaAny)
	types := workload.DataTypes()
	p.dataType = types[i%len(types)]
	reductions := workload.Reductions(p.dataType)
	p.reduceOp = reductions[i/len(types)%len(reductions)]
	p.seed = c.Seed<<20 + uint64(i) // differs between cases
	p.value = 0                     // the input is random
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

// expectedSum returns the right result of a case without a formula. Rank r has the input
// value*(r+1), so the sum is value + 2*value + ... + ranks*value.
func expectedSum(value float64, ranks int) float64 {
	return value * float64(ranks) * float64(ranks+1) / 2
}

// compare compares got, a rank's output of the all-reduce, with the right output.
func (p *plannedCase) compare(got []byte, ranks int) finding {
	if p.formula == driver.AnyFormula {
		want := workload.Encode(nil, p.dataType, expectedSum(p.value, ranks))
		return p.compareWith(got, want, sumTolerance)
	}

	var inputs [][]byte // by rank
	for rank := range ranks {
		inputs = append(inputs, p.input(rank, ranks))
	}

	want := formula.Reduce(p.formula, p.reduceOp, p.dataType, inputs)
	const bitForBit = 0
	return p.compareWith(got, want, bitForBit)
}

// compareWith compares the elements of got with those of want, which it repeats if there are
// fewer. A tolerance of 0 permits no difference.
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
		diff := distance(gotValue, wantValue)
		if tolerance == 0 || diff > tolerance*max(wantValue, 1) {
			f.Wrong++
		}

		f.MaxDiff = max(f.MaxDiff, diff)
		sumOfDiffs += diff
	}

	elementCount := max(len(got)/size, 1) // not 0, by which the sum is divided
	f.MeanDiff = sumOfDiffs / float64(elementCount)
	return f
}

// distance returns |got - want|. It returns a large number instead of infinity and NaN, because
// JSON cannot represent them.
func distance(got, want float64) float64 {
	d := math.Abs(got - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}

	return d
}
