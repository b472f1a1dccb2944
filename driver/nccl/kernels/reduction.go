package kernels

import (
	"fmt"

	"symmem/driver"
)

// A specialized kernel is compiled for one type of elements, and combines the elements of the ranks
// sequentially: ((a0+a1)+a2)+a3. A generic kernel also supports other types and operations, and
// trees: (a0+a1)+(a2+a3).

// elementType describes a type that kernels can reduce.
type elementType struct {
	number            uint32 // for Launch.reduction
	name              string // in names of specialized kernels, or "" if there are none
	isTreatedAsSigned bool   // an unsigned type that uses the kernels of the signed type
}

var types = map[driver.DataType]elementType{
	driver.Float32:  {number: 0, name: "f32"},
	driver.Float64:  {number: 1},
	driver.Float16:  {number: 2, name: "f16"},
	driver.BFloat16: {number: 3, name: "bf16"},
	driver.Int8:     {number: 4},
	driver.Uint8:    {number: 5},
	driver.Int32:    {number: 6, name: "i32"},
	driver.Int64:    {number: 7},
	driver.Uint32:   {number: 6, name: "i32", isTreatedAsSigned: true},
	driver.Uint64:   {number: 7, isTreatedAsSigned: true},
}

// Launch.reduction contains the number of an operation (bits 0 to 2). For generic kernels, it also
// contains an order, and typeUnit times the number of a type. src/call.h has the same layout.
const (
	orderSequential = 0
	orderTree       = 1 << 3
	orderRounded    = 1 << 4 // used with orderTree; rounds intermediate results to the elements' type
	typeUnit        = 1 << 5

	lastSpecializedOp = 2 // Max; specialized kernels exist for operations 0 to 2
)

// CanReduce reports whether symmem's kernels support a reduction of elements of a type.
func CanReduce(t driver.DataType, op driver.ReduceOp) bool {
	element, supportsType := types[t]
	supportsOp := op.Kernel() != 0
	needsUnsigned := element.isTreatedAsSigned && op.NeedsUnsigned(t)
	return supportsType && supportsOp && !needsUnsigned
}

// setReduction sets reduction, divisor and isGeneric. It returns an error if no kernel supports the
// reduction.
func (l *Launch) setReduction() error {
	if !CanReduce(l.DataType, l.ReduceOp) {
		return fmt.Errorf("%w for %v of %v with %v", errNoKernel, l.Operation, l.DataType, l.ReduceOp)
	}

	order, err := l.chooseOrder()
	if err != nil {
		return err
	}

	if l.ReduceOp.IsAverage() {
		l.divisor = uint32(l.Ranks)
	}

	element := types[l.DataType]
	op, _ := l.ReduceOp.Kernel().Number() // exists, because CanReduce has returned true
	hasSpecialized := element.name != "" && op <= lastSpecializedOp && order == orderSequential
	l.isGeneric = !hasSpecialized
	l.reduction = uint32(op)
	if l.isGeneric {
		l.reduction |= order | element.number*typeUnit
	}

	return nil
}

// chooseOrder returns the order in which elements are combined. It returns orderSequential, which
// specialized kernels support, if a tree gives the same result.
func (l *Launch) chooseOrder() (uint32, error) {
	isTree := l.Formula == driver.Tree || l.Formula == driver.RoundedTree
	if !isTree {
		return orderSequential, nil
	}

	isPowerOfTwo := l.Ranks&(l.Ranks-1) == 0
	if !isPowerOfTwo {
		return 0, fmt.Errorf("%w for the formula %v with %d ranks: the number of ranks must "+
			"be a power of two", errNoKernel, l.Formula, l.Ranks)
	}

	isExact := !l.DataType.Float() || l.ReduceOp.IsMinOrMax()
	if isExact {
		return orderSequential, nil
	}

	hasPartialSums := l.Ranks > 2
	hasIntermediates := hasPartialSums || l.ReduceOp.IsAverage() // an average divides the total
	const halfPrecisionBytes = 2
	mayRound := l.Formula == driver.RoundedTree && l.DataType.Size() == halfPrecisionBytes
	switch {
	case mayRound && hasIntermediates:
		return orderTree | orderRounded, nil
	case hasPartialSums:
		return orderTree, nil
	default: // a0+a1 has only one order
		return orderSequential, nil
	}
}

// kernelName returns the name of a family's specialized kernel for l. In the family line_sum, this
// is for example line_sum_f32_4 for 4 ranks.
func (l *Launch) kernelName(family string) string {
	rankCount := 8 // the kernel for 8 ranks also supports fewer
	if l.Ranks == 2 || l.Ranks == 4 {
		rankCount = l.Ranks
	}

	if l.Operation.Reduces() {
		return fmt.Sprintf("%s_%s_%d", family, types[l.DataType].name, rankCount)
	}

	return fmt.Sprintf("%s_%d", family, rankCount)
}
