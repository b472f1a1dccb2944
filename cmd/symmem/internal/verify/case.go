package verify

import (
	"bytes"
	"math"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
	"symmem/driver/formula"
)

// plannedCase describes a case: an all-reduce whose result is checked. It sums float32 elements,
// which are value on rank 0, 2*value on rank 1, and so on.
//
// With a formula (an order of additions), inputs are random, and the result must match bit for bit.
// Cases cycle through all types and reductions.
type plannedCase struct {
	name     string
	round    int  // counted from 1
	group    int  // 0 is the world
	isChurn  bool // checks a churn buffer
	elements int64
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	value    float64        // each element of rank 0's input; 0 with a formula
	formula  driver.Formula // AnyFormula without one
	seed     uint64         // of the random inputs with a formula
}

// useFormula sets the formula, the type, the reduction and the input, if a formula is configured.
// The size of the buffer in bytes remains the same.
func (p *plannedCase) useFormula(c *Config, caseIndex int) {
	if !c.hasFormula() {
		return
	}

	p.formula = c.formula()
	types := workload.DataTypes()
	p.dataType = types[caseIndex%len(types)]
	completedCycles := caseIndex / len(types)
	reductions := workload.Reductions(p.dataType)
	p.reduceOp = reductions[completedCycles%len(reductions)]
	p.seed = c.Seed<<20 + uint64(caseIndex)
	p.value = 0
	p.name += " " + p.reduceOp.String() + " " + p.dataType.String()
	bufferBytes := p.elements * elementBytes
	p.elements = bufferBytes / int64(p.dataType.Size())
}

// input returns the content of a rank's buffer before the all-reduce.
func (p *plannedCase) input(rank, ranks int) []byte {
	if p.formula != driver.AnyFormula {
		return formula.Input(p.dataType, p.seed, rank, ranks, p.elements)
	}

	element := workload.Encode(nil, p.dataType, p.value*float64(rank+1))
	return bytes.Repeat(element, int(p.elements))
}

// expectedSum returns value + 2*value + ... + ranks*value.
func expectedSum(value float64, ranks int) float64 {
	return value * float64(ranks) * float64(ranks+1) / 2
}

// finding is the result of one case on one rank.
type finding struct {
	Completed bool    `json:"ran"`
	Symmetric bool    `json:"symmetric"` // whether the buffer was registered with the group
	Wrong     int64   `json:"wrong"`     // number of wrong elements
	MaxDiff   float64 `json:"max_diff"`  // largest error of an element
	MeanDiff  float64 `json:"mean_diff"` // mean error over all elements
}

// sumTolerance is the permitted relative error of a sum without a formula.
const sumTolerance = 1e-5

// compare compares got, a rank's output, with the right result.
func (p *plannedCase) compare(got []byte, ranks int) finding {
	if p.formula == driver.AnyFormula {
		wantElement := workload.Encode(nil, p.dataType, expectedSum(p.value, ranks))
		return p.compareElements(got, wantElement, sumTolerance)
	}

	var inputs [][]byte // by rank
	for rank := range ranks {
		inputs = append(inputs, p.input(rank, ranks))
	}

	want := formula.Reduce(p.formula, p.reduceOp, p.dataType, inputs)
	const equalBits = 0
	return p.compareElements(got, want, equalBits)
}

// compareElements compares got with want, which it repeats if it is shorter. tolerance is the
// permitted relative error of positive elements. If it is 0, all bits must be equal.
func (p *plannedCase) compareElements(got, want []byte, tolerance float64) finding {
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
		isWrong := tolerance == 0 || diff > tolerance*wantValue
		if isWrong {
			f.Wrong++
		}

		f.MaxDiff = max(f.MaxDiff, diff)
		sumOfDiffs += diff
	}

	elementCount := len(got) / size
	f.MeanDiff = sumOfDiffs / float64(max(elementCount, 1))
	return f
}

// difference returns |got - want|, or MaxFloat32 for infinity and NaN, which JSON lacks.
func difference(got, want float64) float64 {
	d := math.Abs(got - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}

	return d
}
