package reduce

// Op identifies the operation that combines two elements.
type Op uint8

// The operations. The package comment specifies their results for NaNs, zeros and overflow.
const (
	Sum Op = iota
	Prod
	Min
	Max
	// BAnd, BOr and BXor are bitwise and only for integers. They must be last.
	BAnd
	BOr
	BXor
	OpCount = iota
)

const opScaledSum Op = OpCount

// Accepts reports whether op is valid and defined for t.
func (op Op) Accepts(t DataType) bool {
	return t.Valid() && (op < BAnd || op < OpCount && !t.Float())
}

// Number is the constraint for types in which elements are combined.
type Number interface {
	integer | ~float32 | ~float64
}

// Combine combines two elements. The built-in functions min and max order zeros and propagate NaNs
// as in IEEE 754-2019. A NaN may differ from the one that the package comment requires.
func Combine[T Number](op Op, a, b T) T {
	switch op {
	case Sum:
		return a + b
	case Prod:
		return a * b
	case Min:
		return min(a, b)
	case Max:
		return max(a, b)
	case BAnd:
		return T(int64(a) & int64(b))
	case BOr:
		return T(int64(a) | int64(b))
	case BXor:
		return T(int64(a) ^ int64(b))
	case opScaledSum: // needs a factor
	}

	panic("reduce: invalid operation")
}
