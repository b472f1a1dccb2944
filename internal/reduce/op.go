package reduce

// Op identifies the operation that combines two elements. The zero value is Sum.
type Op uint8

// The operations that all backends support. The package comment specifies their results for
// NaNs, zeros and overflow.
const (
	Sum Op = iota
	Prod
	Min
	Max
	// BAnd, BOr and BXor are bitwise and only for integers. Accepts relies on their being last.
	BAnd
	BOr
	BXor
	// OpCount is the number of operations.
	OpCount = iota
)

const opScaledSum Op = OpCount

// Accepts reports whether op is one of the declared operations and is defined for t.
func (op Op) Accepts(t DataType) bool {
	return t.Valid() && (op < BAnd || op < OpCount && !t.Float())
}

// Number is the constraint for types in which elements are combined. 16-bit floats are combined as
// float32.
type Number interface {
	integer | ~float32 | ~float64
}

// Combine combines two elements. It relies on the built-in functions min and max, which order zeros
// and propagate NaNs as IEEE 754-2019 specifies. Combine may return any NaN where the package
// comment requires a particular one.
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
	case opScaledSum: // invalid here, because it needs a factor
	}
	panic("reduce: invalid operation")
}
