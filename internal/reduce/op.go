package reduce

// Op is the operation that combines two elements. The zero value is Sum. Average divides the result
// of a Sum.
type Op uint8

// The operations that every backend supports. The package comment specifies their results for NaNs,
// zeros and overflow.
const (
	Sum Op = iota
	Prod
	Min
	Max
	// OpCount is the number of operations.
	OpCount = iota
)

// Valid reports whether op is one of the declared operations.
func (op Op) Valid() bool { return op < OpCount }
